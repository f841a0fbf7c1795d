"""Whether an attempt starts, runs, is paused or goes, by its life-cycle events. Pure: no files, no clock."""

from dataclasses import dataclass, field

from hpcrl.event_log import Entry
from hpcrl.events import AttemptBegun, CommandHeard, DrainBegun, NodeLeaving, WorkersReady


@dataclass
class Phases:
    """`feed` each event of an attempt. Times are seconds since it began, by the clock that nobody sets."""

    phase: str = "starting"
    began: float | None = None
    """When the first was written, by that clock."""
    paused_since: float | None = None
    """None while nobody wants it paused."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """Those that are over, and in no row of costs."""

    def feed(self, entry: Entry) -> None:
        self.began = entry.mono if self.began is None else self.began
        match entry.event:
            case AttemptBegun() as begun:
                self.paused_since = 0.0 if begun.paused else None
            case WorkersReady():
                self.phase = "running"
            case CommandHeard(command="pause" | "continue" as command):
                self._pause(entry.mono - self.began, is_paused=command == "pause")
            case CommandHeard(command="finish"):
                self.phase = "finishing"
            case DrainBegun() | NodeLeaving():
                self.phase = "draining"

    @property
    def paused(self) -> bool:
        return self.paused_since is not None

    def resume(self, phase: str, at_s: float, paused: bool) -> None:
        """What a row of costs says of all that was before it."""
        self.phase, self.pauses, self.paused_since = phase, [], at_s if paused else None

    def take_pauses(self, at_s: float) -> tuple[tuple[float, float], ...]:
        """Those up to now, which are told of from here on; one that goes on is cut."""
        self._pause(at_s, self.paused)
        pauses, self.pauses = tuple(self.pauses), []
        return pauses

    def _pause(self, at_s: float, is_paused: bool) -> None:
        """What it was up to now is told; from now on it is paused, or not."""
        if self.paused_since is not None:
            self.pauses.append((round(self.paused_since, 3), round(at_s, 3)))
        self.paused_since = at_s if is_paused else None
