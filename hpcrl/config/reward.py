"""What scores a response."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from hpcrl.config.bounds import Natural, Positive
from hpcrl.config.fields import ChangeClass, FunctionText
from hpcrl.config.model import PlacementConfig


@dataclass(frozen=True, kw_only=True)
class RewardConfig(PlacementConfig):
    """A function of (prompt, response, row) in processes of its own. Knows nothing of models."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    function: Annotated[FunctionText, ChangeClass.FORK]
    """gsm8k (the last "#### NUMBER"), exact (the whole text), "module:function" or "/path/file.py:function"."""
    timeout_s: Annotated[Positive, ChangeClass.PLACEMENT] = 60.0
    """A response whose score takes longer ends the run with an error, never with a zero."""
    trial_rows: Annotated[Natural, ChangeClass.PLACEMENT] = 3
    """Rows of the training data on which the function is tried before the start, where you submit; 0 tries none."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further named arguments of the function."""
