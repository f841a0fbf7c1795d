"""What an attempt is doing, folded from the master's events: which worker has which call, and what the calls cost.

Pure: rows in, values out. Knows neither files nor the clock. An event that it does not know changes nothing.
"""

from dataclasses import dataclass, field

from hpcrl.inspect.lines import Row

EVALUATION = "eval_"
"""What the names of evaluation calls begin with."""


@dataclass(frozen=True)
class Busy:
    """A part of a call that a worker has been sent and has not executed yet."""

    call: str
    step: int
    part: int
    since: float
    replay: bool = False

    def __str__(self) -> str:
        return f"{'replays ' if self.replay else ''}{self.call}, step {self.step}"


@dataclass
class CallCost:
    """What one call of the graph has cost so far: parts executed, and seconds of workers."""

    parts: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Pace:
    """How fast steps go. Tokens are those that were generated for training."""

    seconds_per_step: float
    samples_per_s: float
    tokens_per_s: float


@dataclass
class Activity:
    """One attempt as its events tell it. Times are the master's wall clock."""

    attempt: int = 0
    phase: str = "starting"
    recovered: str = ""
    steps: int | None = None
    """How many steps the run has, if nothing ends it before."""
    began: float | None = None
    last: float | None = None
    ready: float | None = None
    nodes: dict[int, str] = field(default_factory=dict)
    busy: dict[int, list[Busy]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    costs: dict[str, CallCost] = field(default_factory=dict)
    step_ends: dict[int, float] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, dict[str, int]] = field(default_factory=dict)
    paused: bool = False
    ending: str = ""

    def feed(self, row: Row) -> None:
        """Take in one event."""
        when = float(row.get("time", 0.0))
        self.began = when if self.began is None else self.began
        self.last = when
        match row:
            case {"event": "attempt", "number": attempt, "recovered": recovered}:
                self.attempt, self.recovered, self.steps = attempt, recovered, row.get("steps")
                self.paused = row.get("paused", False)
            case {"event": "node", "node": node, "host": host}:
                self.nodes[node] = host
            case {"event": "ready", "workers": workers}:
                self.phase, self.ready = "running", when
                self.busy = {rank: [] for rank in range(workers)}
            case {"event": "opened", "step": step, "samples": samples}:
                self.samples[step] = samples
            case {"event": "sent", "call": call, "step": step, "part": part, "ranks": ranks}:
                unit = Busy(call, step, part, when, row.get("replay", False))
                for rank in ranks:
                    self.busy.setdefault(rank, []).append(unit)
            case {"event": "executed", "call": call, "step": step, "part": part, "ranks": ranks}:
                for rank in ranks:
                    self._has_executed(rank, (call, step, part))
                self._add_cost(row)
            case {"event": "closed", "step": step}:
                self.step_ends[step] = when
            case {"event": "command", "command": "pause" | "continue" as command}:
                self.paused = command == "pause"
            case {"event": "draining" | "node leaving"}:
                self.phase = "draining"
            case {"event": "worker ended", "rank": rank, "how": how}:
                self.ended[rank] = how
            case {"event": "ending", "state": state, "reason": reason}:
                self.phase, self.ending = "ended", f"{state}: {reason}"

    @property
    def ranks(self) -> list[int]:
        """The workers that have been heard of."""
        return sorted(self.busy.keys() | self.ended.keys())

    def doing(self, rank: int) -> str:
        """What a worker does now, in a few words."""
        if rank in self.ended:
            return f"ended: {self.ended[rank]}"
        if self.busy.get(rank):
            return str(self.busy[rank][0])
        return "starting" if self.ready is None else "idle"

    def pace(self, over: int = 20) -> "Pace | None":
        """How fast the last steps went; None before two of them have ended."""
        ends = sorted(self.step_ends.items())[-(over + 1) :]
        if len(ends) < 2:
            return None
        seconds = max(1e-9, ends[-1][1] - ends[0][1])
        steps = [step for step, _ in ends[1:]]
        tokens = sum(max(self.tokens.get(step, {}).values(), default=0) for step in steps)
        samples = sum(self.samples.get(step, 0) for step in steps)
        return Pace(seconds / len(steps), samples / seconds, tokens / seconds)

    def _has_executed(self, rank: int, done: tuple[str, int, int]) -> None:
        units = self.busy.get(rank, [])
        self.busy[rank] = [unit for unit in units if (unit.call, unit.step, unit.part) != done]

    def _add_cost(self, row: Row) -> None:
        cost = self.costs.setdefault(row["call"], CallCost())
        cost.parts += 1
        cost.seconds += row.get("seconds", 0.0) * len(row["ranks"])
        if not row["call"].startswith(EVALUATION):
            tokens = self.tokens.setdefault(row["step"], {})
            tokens[row["call"]] = tokens.get(row["call"], 0) + row.get("tokens", 0)


def fold(rows: list[Row]) -> Activity:
    """An attempt's activity from all of its events."""
    activity = Activity()
    for row in rows:
        activity.feed(row)
    return activity
