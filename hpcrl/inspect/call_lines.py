"""Lines of a log that say which calls were executed when, and what is under way: from an attempt's rows of costs and
its `live.json`, as if its master had written them among its events."""

import heapq
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import numpy as np

from hpcrl.costs import Live, Made, Ranks, StepCost, UnderWay, decode, decode_live, made_in, made_since, take_ranks
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.clocks import MASTER
from hpcrl.inspect.lines import Tail
from hpcrl.inspect.log_lines import LogLine
from hpcrl.inspect.merging import Piece

PIECE = 256
"""Lines that are given out at a time, or some more."""


class CallLines:
    """Of one attempt. A line stands where its call ended; while the log is followed it comes when its step closes."""

    def __init__(self, run: RunDirectory, attempt: int) -> None:
        self.attempt = attempt
        self._live = run.live(attempt)
        self._tail = Tail(run.costs(attempt))
        self._ranks: Ranks = {}
        self._newest: StepCost | None = None
        self._held: list[LogLine] = []
        """Before which lines of steps that have not closed may come."""
        self._time = 0.0

    def read(self, to_the_end: bool) -> Iterator[Piece[LogLine]]:
        """What was added since the last call, by time; with what no row tells, if nothing more comes."""
        for lines in self._pieces(to_the_end):
            yield Piece(np.fromiter((line.time for line in lines), float, len(lines)), lines)

    def shown(self) -> Iterator[Piece[bytes]]:
        """The same to the end, as people read it."""
        for piece in self.read(to_the_end=True):
            yield Piece(piece.times, [str(line).encode() for line in piece.lines])

    def _pieces(self, to_the_end: bool) -> Iterator[list[LogLine]]:
        piece: list[LogLine] = []
        for text in self._tail.each():
            with suppress(msgspec.DecodeError):
                piece += self._of_row(decode(text))
            if len(piece) >= PIECE:
                yield piece
                piece = []
        if to_the_end:
            self._take_live()
            piece += self._until(float("inf"))
        if piece:
            yield piece

    def _of_row(self, row: StepCost) -> Iterator[LogLine]:
        """Steps close in the order in which they opened: of later ones nothing has ended before this one opened."""
        self._newest = row
        take_ranks(self._ranks, row.ranks)
        for made in made_in(row, self._ranks):
            self._hold(row.time - row.at_s + made.span.ended_s, _executed(made), made.step, made.call)
        return self._until(row.time - row.seconds)

    def _take_live(self) -> None:
        try:
            live = decode_live(self._live.read_bytes())
        except (OSError, msgspec.DecodeError):
            return
        if live.attempt != self.attempt:
            return
        if self._newest is not None:
            live = live.after(self._newest)
        take_ranks(self._ranks, live.ranks)
        self._hold_live(live)

    def _hold_live(self, live: Live) -> None:
        for made in made_since(live, self._ranks):
            self._hold(live.time - live.at_s + made.span.ended_s, _executed(made), made.step, made.call)
        for unit in live.under_way:
            self._hold(unit.since, _sent(unit), unit.step, unit.call)

    def _hold(self, when: float, text: str, step: int, call: str) -> None:
        heapq.heappush(self._held, LogLine(when, self.attempt, MASTER, text, step=max(step, 0), call=call))

    def _until(self, bound: float) -> Iterator[LogLine]:
        """Those of the lines that are held which end no later; times are rounded, and never go back."""
        while self._held and self._held[0].time <= bound:
            line = heapq.heappop(self._held)
            self._time = max(self._time, line.time)
            yield line if line.time == self._time else line._replace(time=self._time)


def _executed(made: Made) -> str:
    span = made.span
    took = f"seconds={span.seconds:g} waited_s={span.ended_s - span.sent_s:.4g}"
    who = f" slowest={span.slowest}" if span.slowest >= 0 and len(made.ranks) > 1 else ""
    return f"executed {_unit(max(made.step, 0), made.call, span.part, made.ranks, span.replay)} {took}{who}"


def _sent(unit: UnderWay) -> str:
    return f"under way {_unit(unit.step, unit.call, unit.part, unit.ranks, unit.replay)}"


def _unit(step: int, call: str, part: int, ranks: tuple[int, ...], replay: bool) -> str:
    of = f" ranks=[{','.join(map(str, ranks))}]" if ranks else ""
    return f"step={step} call={call} part={part}{of} replay={'true' if replay else 'false'}"
