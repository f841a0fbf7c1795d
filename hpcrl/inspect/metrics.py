"""The metrics of a run: one row per step, over all attempts; and which of them a person looks at first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.lines import Row, Tail

BESIDES = ("step", "epoch", "samples", "drawn", "rounds", "settings")
"""What a row has besides statistics of calls."""


@dataclass(frozen=True)
class Figure:
    """A metric that is shown first: what it is called, which key it has, and how many decimals."""

    label: str
    key: str
    decimals: int = 3

    def show(self, value: float | None) -> str:
        return "–" if value is None else f"{value:.{self.decimals}f}"


ACCURACY = "accuracy"
ACCURACY_IS = "accuracy: the share of held-out responses, greedily sampled, with reward.right_at (1) or more"

FIGURES = (
    Figure("reward", "rew_inf/reward"),
    Figure("held-out reward", "eval_rew/reward"),
    Figure(ACCURACY, "eval_rew/accuracy"),
    Figure("KL", "actor_train/kl", 4),
    Figure("length", "actor_gen/response_length", 1),
    Figure("loss", "actor_train/loss", 4),
    Figure("held-out loss", "eval_loss/loss", 4),
    Figure("value loss", "critic_train/loss", 4),
)
UNKNOWN_FIGURES = 4
"""How many metrics are shown of a graph that has none of the figures."""


class MetricsReader:
    """The rows of all attempts, kept up to date; of a step that several have, the newest attempt's counts."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._tails: dict[int, Tail] = {}
        self._rows: dict[int, tuple[int, Row]] = {}
        self._closed_by: dict[int, int] = {}
        self._in_order: list[Row] = []

    def rows(self) -> list[Row]:
        """All rows that are there now, in order of steps."""
        return self.read(self._run.numbers())

    def read(self, attempts: Iterable[int]) -> list[Row]:
        """All rows that are known, once what was added to these attempts' files has been read."""
        added = False
        for attempt in attempts:
            for row in self._tails.setdefault(attempt, Tail(self._run.metrics(attempt))).rows():
                added |= self._take(attempt, row)
        if added:
            self._in_order = [row for _, (_, row) in sorted(self._rows.items())]
        return self._in_order

    def restarts(self) -> list[int]:
        """The first steps of those attempts that went on where another had ended, not those that they repeat."""
        firsts: dict[int, int] = {}
        for step, attempt in sorted(self._closed_by.items(), reverse=True):
            firsts[attempt] = step
        return sorted(firsts.values())[1:]

    def _take(self, attempt: int, row: Row) -> bool:
        step = row.get("step")
        if not isinstance(step, int):
            return False
        self._closed_by[step] = min(attempt, self._closed_by.get(step, attempt))
        if attempt < self._rows.get(step, (0, {}))[0]:
            return False
        self._rows[step] = (attempt, row)
        return True


def merged_metrics(run: RunDirectory) -> list[Row]:
    """The rows of all attempts, the newest attempt's of each step, in order of steps."""
    return MetricsReader(run).rows()


def series(rows: Sequence[Row], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric, where it was measured."""
    measured = [(row["step"], float(row[key])) for row in rows if isinstance(row.get(key), int | float)]
    return [step for step, _ in measured], [value for _, value in measured]


def last(rows: Sequence[Row], key: str) -> float | None:
    """The newest value of a metric."""
    values = series(rows, key)[1]
    return values[-1] if values else None


def skipped_updates(rows: Sequence[Row]) -> dict[str, int]:
    """train_step → how many of its updates were skipped, where some were: their gradients were not finite."""
    keys = dict.fromkeys(key for row in rows for key in row if key.endswith("/skipped"))
    found = {key: sum(series(rows, key)[1]) for key in keys}
    return {key.partition("/")[0]: int(count) for key, count in found.items() if count}


def empty_steps(rows: Sequence[Row]) -> int:
    """How many steps trained on nothing, because no group that they drew could be chosen."""
    return sum("drawn" in row and row["samples"] == 0 for row in rows)


def settings_changes(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """(step, version) where another version of the settings counted than in the step before; version 0 comes first."""
    versions = [(row["step"], version) for row in rows if isinstance(version := row.get("settings"), int)]
    before = [0, *(version for _, version in versions)]
    return [change for change, last_one in zip(versions, before, strict=False) if change[1] != last_one]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """What to show of these rows first."""
    measured = dict.fromkeys(key for row in rows for key in row if key not in BESIDES)
    known = [figure for figure in FIGURES if figure.key in measured]
    return known or [Figure(key, key, 4) for key in list(measured)[:UNKNOWN_FIGURES]]
