"""docs/durability.md's tables, made of outcomes."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from kills.outcomes import Outcome
from kills.points import CHOOSING, EVALUATE, GENERATE, LAYOUTS, PPO, Point, points

PAGE = Path(__file__).parents[2] / "docs" / "durability.md"
BEGIN, END = "<!-- made by `make kill`: begin -->\n", "<!-- made by `make kill`: end -->\n"
ROLES = ("worker", "peer", "reward", "housekeeper", "agent", "master")
SIGNALS = ("KILL", "STOP", "TERM")
RUNS = {
    PPO: "PPO",
    CHOOSING: "GRPO with dynamic sampling, a reference that follows the actor, and CPU workers",
    LAYOUTS: "PPO, each role and call in a layout of its own, with moves, releases and blends",
    GENERATE: "generation",
    EVALUATE: "evaluation",
}


def write(outcomes: Mapping[Point, Outcome], path: Path = PAGE) -> None:
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(before + BEGIN + table(outcomes) + END + rest.partition(END)[2])


def made(path: Path = PAGE) -> str:
    return path.read_text().partition(BEGIN)[2].partition(END)[0]


def table(outcomes: Mapping[Point, Outcome]) -> str:
    """A table for each run and topology: a line for each phase, a column for each process and signal."""
    wrong = sum(bool(outcome.wrong) for outcome in outcomes.values())
    commits = sorted({outcome.commit for outcome in outcomes.values()})
    struck = f"{len(outcomes)} of {len(points())} points struck so far"
    head = f"{struck}, {wrong} that did not end with the same bits; commit {', '.join(commits)}.\n"
    in_order = sorted(outcomes.values(), key=_section)
    parts = [_of_section(*key, list(found)) for key, found in groupby(in_order, _section)]
    return "\n".join([head, *parts, *_wrong(outcomes)])


def _section(outcome: Outcome) -> tuple[int, str]:
    return list(RUNS).index(outcome.run), outcome.topology


def _of_section(run: int, topology: str, outcomes: Sequence[Outcome]) -> str:
    columns = [(role, what) for role in ROLES for what in SIGNALS if _column(outcomes, role, what)]
    titles = " | ".join(f"{role} {what}" for role, what in columns)
    lines = [
        f"### {list(RUNS.values())[run]}: {topology}\n",
        f"| phase | {titles} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for phase in dict.fromkeys(outcome.phase for outcome in outcomes):
        cells = (_column([each for each in outcomes if each.phase == phase], *column) for column in columns)
        lines.append(f"| {phase} | {' | '.join(_cell(found) for found in cells)} |")
    return "\n".join(lines) + "\n"


def _column(outcomes: Sequence[Outcome], role: str, what: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if (outcome.role, outcome.what) == (role, what)]


def _cell(found: Sequence[Outcome]) -> str:
    return "; ".join("**wrong**" if outcome.wrong else outcome.how for outcome in found)


def _wrong(outcomes: Mapping[Point, Outcome]) -> Iterator[str]:
    for point, outcome in outcomes.items():
        if outcome.wrong:
            yield f"- {point.name}: {outcome.wrong}\n"
