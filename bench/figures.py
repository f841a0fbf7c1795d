"""What was measured: figures with their targets, kept as JSON so that one part can be measured again alone."""

import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One number. `target` is "≥ 1.25" or "≤ 5", or nothing where the number only explains another.

    `value` is None where it could not be measured; `detail` then says why.
    """

    what: str
    value: float | None
    unit: str
    target: str = ""
    detail: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        if not self.target:
            return ""
        sign, bound = self.target.split()
        met = self.value >= float(bound) if sign == "≥" else self.value <= float(bound)
        return "met" if met else "**not met**"


@dataclass(frozen=True)
class Part:
    """The figures of one part of the bench, and the circumstances under which they were taken."""

    title: str
    how: str
    figures: list[Figure]
    measured: str = ""
    load: float = 0.0
    seconds: float = 0.0
    machine: str = ""


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def load() -> float:
    """Processes that wanted a core, mean of the last minute."""
    return round(os.getloadavg()[0], 1)


def keep(path: Path, part: Part) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(part), indent=1, ensure_ascii=False) + "\n")


def kept(path: Path) -> Part | None:
    if not path.exists():
        return None
    values = json.loads(path.read_text())
    return Part(**values | {"figures": [Figure(**figure) for figure in values["figures"]]})


def merged(before: Part | None, part: Part) -> Part:
    """The newer figures of a part, with those of before that were not measured again."""
    again = {figure.what: figure for figure in part.figures}
    older = [] if before is None else [figure for figure in before.figures if figure.value is not None]
    figures = [again.pop(figure.what, figure) for figure in older] + list(again.values())
    return replace(part, figures=figures)


def median(numbers: Sequence[float]) -> float:
    return float(statistics.median(numbers))


def spread(numbers: Sequence[float], unit: str) -> str:
    """The lowest and the highest, for a figure's detail."""
    return f"{min(numbers):.3g} … {max(numbers):.3g} {unit} in {len(numbers)} rounds"
