"""What `control.stop_when` says."""

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

_CONDITION = re.compile(r"\s*(\w+/\w+)\s*(>=|<=|>|<)\s*(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Condition:
    """`metric >= number`, or with <=, > or <."""

    metric: str
    symbol: str
    number: float

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Raises ValueError naming the text and what is expected."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise ValueError(
                f'{text!r} is no condition: write call/metric, comparison and number, as in "eval_rew/accuracy >= 0.35"'
            )
        return cls(found[1], found[2], float(found[3]))

    @property
    def call(self) -> str:
        """The call that reports the metric."""
        return self.metric.partition("/")[0]

    @property
    def name(self) -> str:
        """The metric's name among those of its call."""
        return self.metric.partition("/")[2]

    def lacks(self, reported: Collection[str]) -> bool:
        """Whether the call has reported, but not this metric."""
        return self.metric not in reported and any(name.startswith(f"{self.call}/") for name in reported)

    def holds(self, metrics: Mapping[str, float]) -> bool:
        return self.metric in metrics and _COMPARE[self.symbol](metrics[self.metric], self.number)
