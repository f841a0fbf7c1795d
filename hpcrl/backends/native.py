"""hpcrl's own: one process holds a whole model in flat buffers; AdamW's state is cut over data-parallel ranks."""

from hpcrl.backends.backend import Backend

BACKEND = Backend(
    train=True,
    generate=True,
    axes=("dp",),
    dtypes=("fp32", "bf16", "fp64"),
    engine="hpcrl.engines.native:NativeEngine",
)
