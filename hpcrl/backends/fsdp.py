"""torch's FSDP2: each data-parallel rank keeps its part of every parameter, and gathers a block while it computes."""

from hpcrl.backends.backend import Backend

BACKEND = Backend(
    train=True,
    generate=True,
    model_kinds=("own", "transformers"),
    axes=("dp",),
    dtypes=("fp32", "bf16", "fp64"),
    lora=True,
    offloads=("optimizer", "parameters"),
    shards="rows",
    engine="hpcrl.engines.fsdp:FsdpEngine",
)
