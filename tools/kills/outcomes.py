"""What became of the points: a line of JSON each, kept beside the page that is made of them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kills.points import PPO, Point

KEPT = Path(__file__).parent / "outcomes.jsonl"


@dataclass(frozen=True)
class Outcome:
    """`how` says in words how the run came to its end; `wrong` is empty where it ended with the same bits."""

    topology: str
    role: str
    phase: str
    what: str
    how: str
    wrong: str
    seconds: float
    commit: str
    run: str = PPO

    @property
    def point(self) -> Point:
        return Point(self.topology, self.role, self.phase, self.what, self.run)


def read(path: Path = KEPT) -> dict[Point, Outcome]:
    """The newest of each point; a torn last line does not count."""
    found: dict[Point, Outcome] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            outcome = Outcome(**json.loads(line))
        except ValueError:
            continue
        found[outcome.point] = outcome
    return found


def add(outcome: Outcome, path: Path = KEPT) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")


def rewrite(outcomes: dict[Point, Outcome], path: Path = KEPT) -> None:
    path.write_text("")
    for outcome in outcomes.values():
        add(outcome, path)
