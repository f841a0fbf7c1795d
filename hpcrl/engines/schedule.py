"""Learning rates as closed forms of an update's position in the run: nothing is counted, so nothing can drift."""

import math
from collections.abc import Callable, Mapping

from hpcrl.config.model import OptimizerConfig

DECAYS: Mapping[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: (1.0 + math.cos(math.pi * progress)) / 2,
}
"""progress (0 after warm-up … 1 at the end of the run) → share of the way from the minimal to the peak rate"""


def learning_rate(config: OptimizerConfig, update: int, total: int) -> float:
    """The rate of update number `update` (from 0) of the `total` of a run.

    Linear warm-up from 0, which is not itself used: update 0 has 1/(warmup_steps + 1) of the peak.
    """
    if update < config.warmup_steps:
        return config.lr * (update + 1) / (config.warmup_steps + 1)
    progress = min(1.0, (update - config.warmup_steps) / max(1, total - config.warmup_steps))
    share = DECAYS[config.schedule](progress)
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * share)
