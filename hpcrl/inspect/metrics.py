"""Rows of metrics: which of them a person looks at first, and how they went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcrl.inspect.lines import Row

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

    def said(self, value: float | None) -> str:
        """Within a line of several."""
        return f"{self.label}: {self.show(value)}"


SHARE_RIGHT = "eval_rew/accuracy"


def share_right(right_at: float) -> str:
    """What it is called: something else of the run may be called accuracy, or right."""
    return f"held-out share with reward ≥ {right_at:g}"


def right_at(configuration: Mapping[str, Any]) -> float:
    """The reward from which a response counts as right, of a run's settings."""
    section = configuration.get("reward")
    return float(section.get("right_at", 1.0)) if isinstance(section, Mapping) else 1.0


FIGURES = (
    Figure("reward", "rew_inf/reward"),
    Figure("held-out reward", "eval_rew/reward"),
    Figure(share_right(1.0), SHARE_RIGHT),
    Figure("KL", "actor_train/kl", 4),
    Figure("length", "actor_gen/response_length", 1),
    Figure("loss", "actor_train/loss", 4),
    Figure("held-out loss", "eval_loss/loss", 4),
    Figure("value loss", "critic_train/loss", 4),
)
UNKNOWN_FIGURES = 4
"""How many metrics are shown of a graph that has none of the figures."""
SCRIPT_LOGS = "script/"
LOGGED_FIGURES = 8
"""How many are shown of what a script logs."""


def series(rows: Sequence[Row], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric, where it was measured."""
    measured = [(row["step"], float(row[key])) for row in rows if isinstance(row.get(key), int | float)]
    return [step for step, _ in measured], [value for _, value in measured]


def last(rows: Sequence[Row], key: str) -> float | None:
    """The newest value of a metric."""
    values = series(rows, key)[1]
    return values[-1] if values else None


def figures(rows: Sequence[Row], right_at: float) -> list[Figure]:
    """What to show of these rows first. `right_at`: the reward from which a response counts as right."""
    measured = dict.fromkeys(key for row in rows for key in row if key not in BESIDES)
    known = [_told(figure, right_at) for figure in FIGURES if figure.key in measured]
    return known or [Figure(key, key, 4) for key in list(measured)[:UNKNOWN_FIGURES]]


def with_logged(shown: Sequence[Figure], rows: Sequence[Row]) -> list[Figure]:
    """Those, and behind them what the run's script logs, by name; the first few of it."""
    known = {figure.key for figure in shown}
    names = sorted({key for row in rows for key in row if key.startswith(SCRIPT_LOGS)} - known)
    return [*shown, *(Figure(name, name) for name in names[:LOGGED_FIGURES])]


def _told(figure: Figure, right_at: float) -> Figure:
    return replace(figure, label=share_right(right_at)) if figure.key == SHARE_RIGHT else figure
