"""Whether too many of a step's samples have been dropped by the call that scores them."""

from collections.abc import Callable, Mapping, Sequence

from hpcrl.durable.journal import Stats
from hpcrl.errors import DataError
from hpcrl.recipes.algorithm import DropLimit

DROPPED = "dropped"
"""The statistic: (samples dropped, samples)."""


class DropLimits:
    """What is too many, call by call. `parts` is how many parts a call has."""

    def __init__(self, limits: Mapping[str, DropLimit], parts: Callable[[str], int]) -> None:
        self._limits = limits
        self._parts = parts

    def limits(self, call: str) -> bool:
        """Whether anything is too many of a call."""
        return call in self._limits

    def refuse(self, step: int, call: str, recorded: Sequence[Stats]) -> None:
        """Raise DataError where the parts of a call, if all are recorded, have dropped too many."""
        limit = self._limits.get(call)
        if limit is None or len(recorded) < self._parts(call):
            return
        dropped, samples = (sum(stats[DROPPED][i] for stats in recorded if DROPPED in stats) for i in (0, 1))
        if dropped > limit.share * samples:
            raise DataError(
                f"{call} of step {step} has dropped {dropped:.0f} of {samples:.0f} samples, and {limit.setting} = "
                f"{limit.share:g} allows {limit.share * samples:.0f}; the logs of its workers show them.",
                f"Fix the function and begin a new run, or accept the loss and resume: raise {limit.setting}.",
            )
