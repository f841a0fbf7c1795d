"""Moves carried out element by element over arrays whose elements know their own number."""

from collections.abc import Iterator, Sequence

import numpy as np

from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameters_of
from hpcrl.placement.holdings import Holding
from hpcrl.placement.moving import Moves
from hpcrl.placement.rectangles import Rectangles


def first_numbers(config: DecoderConfig) -> dict[str, int]:
    """The number of each parameter's first element."""
    numbers, end = {}, 0
    for parameter in parameters_of(config):
        numbers[parameter.name] = end
        end += parameter.numel
    return numbers


def runs_of(held: Holding) -> Iterator[tuple[str, int, int, int]]:
    """Parameter, first element, place in the buffer and length of each run of all spans."""
    for name, begin, kind in zip(held.names, held.offsets, held.kinds, strict=True):
        for first, rows, run, stride, offset, step in held.patterns[kind]:
            for row in range(rows):
                yield name, first + row * stride, begin + offset + row * step, run


def numbered(held: Holding, numbers: dict[str, int]) -> np.ndarray:
    """A buffer as its holder has it; -1 where it has nothing."""
    runs = list(runs_of(held))
    buffer = np.full(max((at + run for _, _, at, run in runs), default=0), -1, np.int64)
    for name, first, at, run in runs:
        assert (buffer[at : at + run] == -1).all()
        buffer[at : at + run] = numbers[name] + first + np.arange(run)
    return buffer


def places(rectangles: Rectangles) -> np.ndarray:
    """Where the elements are, in their order."""
    columns = (rectangles.offsets_N, rectangles.steps_N, rectangles.rows_N, rectangles.runs_N)
    parts = [
        (offset + np.arange(rows)[:, None] * step + np.arange(run)).reshape(-1)
        for offset, step, rows, run in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return np.concatenate([np.zeros(0, np.int64), *parts])


class Carried:
    """All views of a move, carried out. `targets` are what each then has; `written` how often each element was."""

    def __init__(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], views: Sequence[Moves]) -> None:
        self.targets = [np.full_like(target, -1) for target in targets]
        self.written = [np.zeros(len(target), np.int64) for target in targets]
        self.sent: list[tuple[int, int, np.ndarray]] = []
        for rank, view in enumerate(views):
            self._write(rank, view.copied[1], sources[rank][places(view.copied[0])])
        for second in (False, True):
            flying = {}
            for rank, view in enumerate(views):
                for transfer in view.rounds[second].sends:
                    buffer = self.targets[rank] if second else sources[rank]
                    flying[rank, transfer.peer] = buffer[places(transfer.rectangles)], transfer.parts_N.tolist()
            for rank, view in enumerate(views):
                for transfer in view.rounds[second].receives:
                    values, parts = flying.pop((transfer.peer, rank))
                    assert parts == transfer.parts_N.tolist() and sum(parts) == len(values)
                    self.sent.append((transfer.peer, rank, values))
                    self._write(rank, transfer.rectangles, values)
            assert not flying

    def _write(self, rank: int, rectangles: Rectangles, values: np.ndarray) -> None:
        at = places(rectangles)
        assert len(at) == len(values) == rectangles.numel
        self.targets[rank][at] = values
        np.add.at(self.written[rank], at, 1)
