"""How far a node's clocks are from its master's, by what beats say. No clock, no socket.

The agent stamps a beat, the master says with its own next one when it heard that and when it answered: NTP's four
stamps. All are of clocks that nobody sets (`time.monotonic`), which differ by when hosts were started and run evenly;
wall clocks may be set meanwhile, and are only compared. Processes of one host share its clocks.
"""

from collections import deque
from collections.abc import Iterator

from hpcrl.member_events import ClockMeasured
from hpcrl.wire.messages import BeatHeard

DRIFT = 1e-4
"""Seconds a second by which two of these clocks part at most; NTP corrects crystals that are wrong by half of that."""
KEPT = 64
"""Exchanges of which the best one counts. An older one is worth less: its error grows with the drift."""
MARGIN_S = 0.002
"""By so much at least a line's error is larger than what was measured, so that a small drift needs no line."""
POOR_S = 0.02
"""An error at which another line is worth while as soon as it is known four times as well."""
STEP_S = 0.1
"""By so much wall clocks part before it is told again. Nothing is put into order by them."""


class Exchange:
    """A beat and its answer. `sent` and `came` are of this node's clock, the others of the master's."""

    def __init__(self, sent: float, heard: float, answered: float, came: float) -> None:
        self.came = came
        self.offset_s = ((sent - heard) + (came - answered)) / 2
        """This clock less the master's, by the half between two ways that may differ."""
        round_trip_s = max(0.0, (came - sent) - (answered - heard))
        self.error_s = round_trip_s / 2 + DRIFT * (came - sent)

    def error_at(self, now: float) -> float:
        """What the offset may be wrong by, later."""
        return self.error_s + DRIFT * (now - self.came)


class ClockFilter:
    """The best of the newest exchanges, as NTP's clock filter takes it: that of the shortest round trip, nearly."""

    def __init__(self) -> None:
        self._kept: deque[Exchange] = deque(maxlen=KEPT)

    def feed(self, new: Exchange) -> None:
        """What contradicts it is older than a jump of a clock, and is forgotten."""
        if any(abs(it.offset_s - new.offset_s) > it.error_at(new.came) + new.error_s for it in self._kept):
            self._kept.clear()
        self._kept.append(new)

    def best(self, now: float) -> tuple[float, float]:
        """This clock less the master's, and the error, in seconds. There was an exchange."""
        best = min(self._kept, key=lambda it: it.error_at(now))
        return best.offset_s, best.error_at(now)


class NodeClock:
    """What is known while a node's agent serves a master, and what its log says of it."""

    def __init__(self) -> None:
        self._filter = ClockFilter()
        self._told: ClockMeasured | None = None

    def answered(self, answer: BeatHeard, came: float, wall: float) -> Iterator[ClockMeasured]:
        """A line, where what was told does not hold any more; `came` and `wall` are this node's clocks."""
        self._filter.feed(Exchange(answer.sent, answer.heard, answer.answered, came))
        offset_s, error_s = self._filter.best(came)
        ahead_s = (wall - came) - (answer.wall - answer.answered) + offset_s
        new = ClockMeasured(round(offset_s, 6), round(error_s + max(MARGIN_S, error_s), 6), round(ahead_s, 4))
        if self._told is None or not _holds(self._told, new, error_s):
            self._told = new
            yield new


def _holds(told: ClockMeasured, new: ClockMeasured, error_s: float) -> bool:
    """Whether the offset, which is known up to `error_s` now, is where it was told to be, and cannot be told far
    better."""
    is_within = abs(new.offset_s - told.offset_s) + error_s <= told.error_s
    is_poor = told.error_s > POOR_S and new.error_s < told.error_s / 4
    return is_within and not is_poor and abs(new.ahead_s - told.ahead_s) <= STEP_S
