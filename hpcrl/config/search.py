"""What a search for an allocation goes by."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from hpcrl.config.bounds import Count, Natural, NonNegative
from hpcrl.config.fields import ChangeClass, PathText

Spread = Annotated[
    tuple[Annotated[float, Meta(ge=1)], NonNegative],
    Meta(description="a mean of at least 1 and a standard deviation of at least 0"),
]
"""Of lengths, in tokens."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """What `hpcrl search`, and allocation: search, go by."""

    changes: ClassVar[ChangeClass] = ChangeClass.PLACEMENT

    profile: PathText | None = None
    """A file with what was measured of the workers' devices and links; null takes data sheets, and of CPUs a table."""
    device: str | None = None
    """The GPU whose data sheet counts, such as H100; null takes cluster.slurm.gpu_type."""
    lengths: PathText | None = None
    """How long texts are: as in this run's samples, or as in this file's lines, {"prompt": 31, "response": 240} in
    tokens; null takes `prompts` and `responses`."""
    prompts: Spread | None = None
    """Mean and standard deviation of prompts, in tokens; null takes half of their most tokens, and half of that."""
    responses: Spread | None = None
    """The same of responses. Both are spread log-normally, and cut at what they may have."""
    proposals: Count | None = None
    """How many plans are tried; null is 4,000,000, or a tenth where hpcrl was installed without a compiler."""
    seed: Natural = 1
    """Where proposals come from."""
