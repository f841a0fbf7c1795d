"""The statistics of open steps, and the row that they make. No clock, no I/O."""

from collections.abc import Iterable

from hpcrl.dataflow.readiness import Unit
from hpcrl.durable.journal import Opened, Stats


class StepMetrics:
    """Step → call → part → statistics, and the newest version of the run's settings that some call was made under."""

    def __init__(self) -> None:
        self._stats: dict[int, dict[str, dict[int, Stats]]] = {}
        self._settings: dict[int, int] = {}

    def opened(self, step: int) -> None:
        self._stats[step], self._settings[step] = {}, 0

    def put(self, unit: Unit, stats: Stats, settings: int = 0) -> None:
        self._stats[unit.step].setdefault(unit.call, {})[unit.part] = stats
        self._settings[unit.step] = max(self._settings[unit.step], settings)

    def row(self, opened: Opened) -> dict[str, int | float]:
        """The step's row: total / weight of every statistic over the parts, added in part order. No clock in it."""
        row: dict[str, int | float] = {"step": opened.step, "epoch": opened.epoch, "samples": len(opened.ids)}
        row["settings"] = self._settings[opened.step]
        for call, by_part in sorted(self._stats[opened.step].items()):
            parts = [stats for _, stats in sorted(by_part.items())]
            for name in dict.fromkeys(name for stats in parts for name in stats):
                total = sum(stats[name][0] for stats in parts if name in stats)
                weight = sum(stats[name][1] for stats in parts if name in stats)
                row[f"{call}/{name}"] = total / weight if weight else 0.0
        return row

    def forget(self, steps: Iterable[int]) -> None:
        for step in steps:
            self._stats.pop(step, None)
            self._settings.pop(step, None)
