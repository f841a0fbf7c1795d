"""The steps under way, by the lines of their making, and the scores by which the newest one chooses. No I/O."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from hpcrl.durable.journal import Called, Chosen, Extended
from hpcrl.durable.once import Once, Turn
from hpcrl.durable.step_lines import StepLines


class OpenSteps:
    """Steps are kept from their opening until nothing of them is asked for any more."""

    def __init__(self) -> None:
        self.last: StepLines | None = None
        """The step that was opened last, maybe in an older attempt and closed since."""
        self._lines: dict[int, StepLines] = {}
        self._scores: dict[str, float] = {}

    def __getitem__(self, step: int) -> StepLines:
        return self._lines[step]

    @property
    def numbers(self) -> Collection[int]:
        return self._lines.keys()

    @property
    def scores(self) -> Mapping[str, float] | None:
        """Of all samples that the newest step has drawn, where it has yet to choose; None while some lack."""
        if self.last is None or self.last.is_whole or len(self._scores) < len(self.last.ids):
            return None
        return self._scores

    def enter(self, lines: StepLines) -> None:
        """The next step opens."""
        self._lines[lines.step] = self.last = lines
        self._scores.clear()

    def follow(self, line: Extended | Chosen | Called | Once) -> StepLines:
        """A step has one line more: all of it."""
        lines = self._lines[line.step]
        assert lines.follows(line)
        self._lines[line.step] = lines = lines.with_line(line)
        for sample in line.going if isinstance(line, Extended) else ():
            self._scores.pop(sample, None)
        if self.last is not None and self.last.step == line.step:
            self.last = lines
        return lines

    def ended(self, step: int, turn: Turn) -> None:
        """The turn of the script that is this step has ended so."""
        self._lines[step] = replace(self._lines[step], turn=turn)
        if self.last is not None and self.last.step == step:
            self.last = self._lines[step]

    def scored(self, scores: Mapping[str, float]) -> None:
        """What was recorded of samples of the newest step."""
        self._scores.update(scores)

    def forget(self, steps: Iterable[int]) -> None:
        for step in steps:
            del self._lines[step]
