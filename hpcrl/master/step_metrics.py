"""The statistics of open steps, and the row that they make. No clock, no I/O."""

from collections.abc import Iterable, Mapping

from hpcrl.dataflow.graph import recipe_name
from hpcrl.dataflow.tasks import Unit
from hpcrl.durable.journal import Done, Event, Stats
from hpcrl.durable.means import means_of
from hpcrl.durable.step_lines import StepLines
from hpcrl.master.drop_limits import DropLimits


class StepMetrics:
    """Step → call → part → statistics, and the newest version of the run's settings that some call was made under.

    Those of all rounds of a call that is made `in_rounds` are together.
    """

    def __init__(self, limits: DropLimits, in_rounds: str = "") -> None:
        self._limits = limits
        self._in_rounds = in_rounds
        self._stats: dict[int, dict[str, dict[tuple[str, int], Stats]]] = {}
        self._settings: dict[int, int] = {}
        self._logged: dict[int, Mapping[str, float]] = {}

    def opened(self, step: int) -> None:
        self._stats[step], self._settings[step] = {}, 0

    def put(self, unit: Unit, stats: Stats, settings: int = 0) -> None:
        call = recipe_name(unit.call, (self._in_rounds,))
        self._stats[unit.step].setdefault(call, {})[unit.call, unit.part] = stats
        self._settings[unit.step] = max(self._settings[unit.step], settings)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """What the run's script says of a step."""
        self._logged[step] = numbers

    def means(self, step: int, call: str) -> dict[str, float]:
        """Of each statistic of a call, over its parts."""
        return means_of([stats for _, stats in sorted(self._stats[step].get(call, {}).items())])

    def row(self, lines: StepLines) -> dict[str, int | float]:
        """The step's row: total / weight of every statistic over the parts, where its weight is not 0. No clock in it.

        Of a step that chooses, `samples` are those chosen, of `drawn` in so many `rounds`; `carried` go on in the next.
        """
        step = lines.step
        row: dict[str, int | float] = {"step": step, "epoch": lines.opened.epoch, "samples": len(lines.trained)}
        if lines.opened.chooses:
            row |= {"drawn": len(lines.ids), "rounds": len(lines.rounds)}
        if lines.opened.chooses and self._in_rounds:
            row["carried"] = sum(len(each.ids) for each in lines.carried)
        row["settings"] = self._settings[step]
        for call in sorted(self._stats[step]):
            row |= {f"{call}/{name}": mean for name, mean in self.means(step, call).items()}
        return row | {f"script/{name}": number for name, number in sorted(self._logged.get(step, {}).items())}

    def reported(self, step: int) -> set[str]:
        """The statistics that some call of the step has reported, those included to which nothing counted."""
        every = self._stats[step].items()
        logged = {f"script/{name}" for name in self._logged.get(step, {})}
        return logged | {f"{call}/{name}" for call, by_part in every for stats in by_part.values() for name in stats}

    def refuse_dropped(self, lines: Iterable[Event]) -> None:
        """Raise DataError where a call, of which these lines have just been recorded, has dropped too many samples."""
        recorded = dict.fromkeys((line.step, line.call) for line in lines if isinstance(line, Done))
        for step, call in (of for of in recorded if self._limits.limits(of[1])):
            by_part = self._stats.get(step, {}).get(call, {})
            self._limits.refuse(step, call, [by_part[part] for part in sorted(by_part)])

    def forget(self, steps: Iterable[int]) -> None:
        for step in steps:
            self._stats.pop(step, None)
            self._settings.pop(step, None)
            self._logged.pop(step, None)
