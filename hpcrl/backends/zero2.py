"""DeepSpeed's ZeRO 2: gradients, masters and moments are cut over data-parallel ranks; gradients are added up after
each micro-batch."""

from hpcrl.backends.backend import Backend, Package

BACKEND = Backend(
    train=True,
    generate=True,
    model_kinds=("own", "transformers"),
    axes=("dp",),
    dtypes=("fp32", "bf16"),
    adds_up="micro_batch",
    packages=(Package("deepspeed", "deepspeed", ("0.19.8", "0.20")),),
    engine="hpcrl.engines.deepspeed:ZeroEngine",
)
