"""The roles that try a cluster's plumbing without a model."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from hpcrl.config.bounds import Count, NonNegative
from hpcrl.config.fields import ChangeClass


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """Vectors instead of models, numbers instead of texts."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    width: Count = 16
    """Length of a trained role's vector."""
    rows: Count = 64
    """Rows of the made-up data set."""
    batch_size: Annotated[Count, ChangeClass.NUMBERS] = 8
    """Rows per step."""
    delay_s: Annotated[NonNegative, ChangeClass.NUMBERS] = 0.0
    """How long each call sleeps."""
