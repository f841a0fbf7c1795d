"""What is kept of the samples of steps, for good."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from hpcrl.config.bounds import Natural
from hpcrl.config.fields import ChangeClass

Kept = Natural | Literal["all"]


@dataclass(frozen=True, kw_only=True)
class SamplesConfig:
    """What is kept in samples/ of what the model said: whole prompts with all of their responses, the same ones each
    time that they come."""

    changes: ClassVar[ChangeClass] = ChangeClass.PLACEMENT

    per_step: Kept = 32
    """Responses of a training step, at most, or those of one prompt if these are more; all, or 0 for none."""
    per_evaluation: Kept = 32
    """Responses of an evaluation, at most, or those of one prompt if these are more; all, or 0 for none."""
