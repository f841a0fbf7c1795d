"""hpcrl's own: a process holds its cut of a model in flat buffers; AdamW's state is cut over data-parallel ranks."""

from hpcrl.backends.backend import Backend

BACKEND = Backend(
    train=True,
    generate=True,
    model_kinds=("own", "transformers"),
    axes=("dp", "tp", "pp"),
    dtypes=("fp32", "bf16", "fp64"),
    lora=True,
    offloads=("optimizer",),
    engine="hpcrl.engines.native:NativeEngine",
)
