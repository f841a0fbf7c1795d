"""Where the elements of a model are: canonical places, by which digests, shards, exports and moves name them.

A place says nothing of layouts, buffers or backends: it is counted in the whole parameter, row-major. Arithmetic only.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec


class Place(msgspec.Struct, frozen=True, order=True):
    """`rows` runs of `run` neighbouring elements of a whole parameter; they begin `stride` apart, the first at element
    `first`."""

    parameter: str
    first: int
    rows: int
    run: int
    stride: int

    @property
    def numel(self) -> int:
        return self.rows * self.run


class Span(msgspec.Struct, frozen=True):
    """A place, and where somebody has it: run i begins at element `offset` + i · `step` of the buffer.

    Of all who have an element one is its owner: who alone counts it in a norm or a digest, saves it, or sends it.
    """

    place: Place
    offset: int
    step: int
    owned: bool = True

    @property
    def stop(self) -> int:
        """The element of the buffer behind its last one."""
        return self.offset + (self.place.rows - 1) * self.step + self.place.run

    def moved(self, by: int) -> "Span":
        """The same in a buffer in which everything begins `by` elements later."""
        return msgspec.structs.replace(self, offset=self.offset + by)

    def disowned(self) -> "Span":
        """The same of somebody who has a copy of what another owns."""
        return msgspec.structs.replace(self, owned=False)

    def part(self, row: int, rows: int, begin: int = 0, end: int | None = None) -> "Span":
        """Of `rows` runs from `row` on the elements `begin` … `end` (None: to the end) of each."""
        place = self.place
        run = (place.run if end is None else end) - begin
        whole = rows == 1  # one run has no stride; so that equal places are equal
        return Span(
            Place(place.parameter, place.first + row * place.stride + begin, rows, run, run if whole else place.stride),
            self.offset + row * self.step + begin,
            run if whole else self.step,
            self.owned,
        )

    def at(self, place: Place) -> "Span":
        """Where a place is that is part of this one."""
        if self.place.rows == 1:
            offset = self.offset + place.first - self.place.first
            return Span(place, offset, place.stride, self.owned)
        row, begin = divmod(place.first - self.place.first, self.place.stride)
        return self.part(row, place.rows, begin, begin + place.run)

    def within(self, start: int, stop: int) -> Iterator["Span"]:
        """What of it lies in the elements `start` … `stop` of the buffer, counted from `start`: at most three spans."""
        run = self.place.run
        first = max(0, (start - self.offset - run) // self.step + 1)  # the first run that ends behind `start`
        last = min(self.place.rows, -(-(stop - self.offset) // self.step)) - 1  # the last that begins before `stop`
        if start >= stop or first > last:
            return
        begin = max(0, start - self.offset - first * self.step)
        end = min(run, stop - self.offset - last * self.step)
        if first == last:
            yield self.part(first, 1, begin, end).moved(-start)
            return
        if begin:
            yield self.part(first, 1, begin).moved(-start)
        whole, cut = first + bool(begin), end < run
        if rows := last + 1 - cut - whole:
            yield self.part(whole, rows).moved(-start)
        if cut:
            yield self.part(last, 1, 0, end).moved(-start)


def whole(parameter: str, numel: int) -> Span:
    """All of a parameter, as one run."""
    return Span(Place(parameter, 0, 1, numel, numel), 0, numel)


def sliced(spans: Iterable[Span], start: int, stop: int) -> tuple[Span, ...]:
    """What of these spans lies in the elements `start` … `stop` of their buffer, counted from `start`."""
    return tuple(chain.from_iterable(span.within(start, stop) for span in spans))


def pieces(spans: Iterable[Span], size: int) -> Iterator[tuple[int, int, tuple[Span, ...]]]:
    """Neighbouring parts of a buffer, of `size` elements at most, that cover the spans: first element, the one behind
    the last, and what of the spans lies between, counted from the first."""
    waiting, active = deque(sorted(spans, key=lambda span: span.offset)), list[Span]()
    end = max((span.stop for span in waiting), default=0)
    for start in range(waiting[0].offset if waiting else 0, end, size):
        stop = min(end, start + size)
        while waiting and waiting[0].offset < stop:
            active.append(waiting.popleft())
        yield start, stop, sliced(active, start, stop)
        active = [span for span in active if span.stop > stop]


def common(one: Place, other: Place) -> Iterator[Place]:
    """The elements that two places of a parameter both have: at most three places.

    Where both have several runs they begin equally far apart: that is how long the rows of the parameter are.
    """
    if one.parameter != other.parameter:
        return
    if one.rows > 1 < other.rows:
        yield from _common_rows(one, other)
        return
    run, runs = (one, other) if one.rows == 1 else (other, one)
    for span in Span(runs, runs.first, runs.stride).within(run.first, run.first + run.run):
        yield span.place


def _common_rows(one: Place, other: Place) -> Iterator[Place]:
    assert one.stride == other.stride, (one, other)
    (row, column), (other_row, other_column) = (divmod(place.first, place.stride) for place in (one, other))
    first, last = max(row, other_row), min(row + one.rows, other_row + other.rows)
    begin, end = max(column, other_column), min(column + one.run, other_column + other.run)
    if first < last and begin < end:
        run, stride = end - begin, one.stride if last - first > 1 else end - begin
        yield Place(one.parameter, first * one.stride + begin, last - first, run, stride)


def packed(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same places, one behind another in a buffer that has nothing else."""
    placed, end = [], 0
    for span in spans:
        placed.append(Span(span.place, end, span.place.run, span.owned))
        end += span.place.numel
    return tuple(placed)
