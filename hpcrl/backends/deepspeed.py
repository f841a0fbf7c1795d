"""What the stages of DeepSpeed's ZeRO declare alike."""

from typing import Any

from hpcrl.backends.backend import Backend, Package


def stage(**own: Any) -> Backend:
    """A stage's backend: `own` is where and when it adds gradients up, and what else is its own."""
    return Backend(
        train=True,
        generate=True,
        model_kinds=("own", "transformers"),
        axes=("dp",),
        dtypes=("fp32", "bf16"),
        packages=(Package("deepspeed", "deepspeed", ("0.19.8", "0.20")),),
        **own,
    )
