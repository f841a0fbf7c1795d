"""DeepSpeed's ZeRO 1: masters and moments are cut over data-parallel ranks; gradients are added up once an update."""

from hpcrl.backends.backend import Backend, Package

BACKEND = Backend(
    train=True,
    generate=True,
    model_kinds=("own", "transformers"),
    axes=("dp",),
    dtypes=("fp32", "bf16"),
    adds_up="update",
    packages=(Package("deepspeed", "deepspeed", ("0.19.8", "0.20")),),
    engine="hpcrl.engines.deepspeed:ZeroEngine",
)
