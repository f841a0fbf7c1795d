"""The roles that try a cluster's plumbing without a model."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """Vectors instead of models, numbers instead of texts."""

    width: int = 16
    """Length of a trained role's vector."""
    rows: int = 64
    """Rows of the made-up data set."""
    batch_size: int = 8
    """Rows per step."""
    delay_s: float = 0.0
    """How long each call sleeps."""
