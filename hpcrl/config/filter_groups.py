"""Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476): steps train on groups whose responses differ in score."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from hpcrl.config.bounds import Count
from hpcrl.config.fields import ChangeClass


@dataclass(frozen=True, kw_only=True)
class FilterGroupsConfig:
    """Drop the groups whose responses all score the same, and draw more prompts until a batch is full."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    metric: Annotated[str | None, ChangeClass.FORK] = None
    """In what the responses to a prompt have to differ: reward, accuracy, or a component of the reward; null trains on
    all prompts."""
    max_rounds: Count = 10
    """How often a step draws prompts at most, a batch at most each time."""
    on_shortage: Literal["fail", "smaller"] = "fail"
    """What happens when groups are still too few after `max_rounds`: end the run, or train on those that there are. A
    step that has none makes no update; the tenth of them in a row ends the run."""
