"""Moves: who sends which elements to whom so that each has what it is to have. Arithmetic only; no buffer is touched.

Whoever has an element already copies it. What is on a worker's node comes from there. All else crosses to each
node that wants it once, and goes from the worker that received it to the others of that node: the second round. Of
several who have an element, or want it, each takes its turn, parameter after parameter of one kind.

Parameters that the same workers have in the same patterns are a class. Those of its elements that the same workers have
are a set (`placement.overlaps`), and go together.
Shape legend: R workers, ordered by node; M nodes; K parameters, C classes of them; X sets that concern me; N
rectangles; P pairs of a set and a worker that lacks it; E transfers, each of one set of one parameter; 2 sides: source
and target.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hpcrl.placement.holdings import Holding, Pattern
from hpcrl.placement.overlaps import Overlaps, found_overlaps, overlaps
from hpcrl.placement.rectangles import NONE, Rectangles

ALONE_BYTES = 2**20
"""A part of so much is a message of its own, for it may be one run. To pack less costs less than to announce it."""


@dataclass(frozen=True, eq=False)
class Transfer:
    """What goes to, or comes from, one worker: element after element in the same order on both sides."""

    peer: int
    rectangles: Rectangles
    parts_N: np.ndarray
    """How many elements come one after another from one rectangle to one rectangle: both sides know of the same."""

    def packed(self, alone: int) -> int:
        """Elements that are copied to be sent, or once received: of parts of fewer than `alone`, and of no one run."""
        pieces = self.rectangles.pieces(self.parts_N.tolist())
        return sum(it.numel for it in pieces if it.numel < alone or len(it) > 1 or it.rows_N[0] > 1)


@dataclass(frozen=True, eq=False)
class Round:
    """What a worker sends and receives at a time, by peer."""

    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


@dataclass(frozen=True, eq=False)
class Moves:
    """One worker's view of a move.

    `copied` are its own elements, as they lie in the source and in the target. The first round sends from the source,
    the second from the target. Both receive into the target.
    """

    copied: tuple[Rectangles, Rectangles]
    rounds: tuple[Round, Round]


_Meet = Callable[[tuple[Pattern, ...], tuple[Pattern, ...]], Overlaps]
IDLE = Moves((NONE, NONE), (Round((), ()), Round((), ())))


@lru_cache(maxsize=64)
def moves(source: tuple[Holding, ...], target: tuple[Holding, ...], nodes: tuple[int, ...], rank: int) -> Moves:
    """As `planned`, of what moves again and again: it is remembered."""
    return planned(source, target, nodes, rank, overlaps)


def planned(
    source: Sequence[Holding],
    target: Sequence[Holding],
    nodes: tuple[int, ...],
    rank: int,
    meet: _Meet = found_overlaps,
) -> Moves:
    """What worker `rank` does so that the elements of `source` come to where `target` has them.

    The i-th holdings are worker i's, and `nodes[i]` its node. `meet` says where patterns do.

    Raises ValueError where nobody has what this worker is to have.
    """
    assert len(source) == len(target) == len(nodes), (len(source), len(target), len(nodes))
    workers = _Workers.ordered(nodes, rank)
    names = tuple({name: None for held in {id(held.names): held.names for held in target}.values() for name in held})
    tables = tuple(_Table.of([held[worker] for worker in workers.order], names) for held in (source, target))
    classes = _Classes.of(tables)
    parts = [_sets(tables, classes, alike, workers, meet) for alike in _geometries(tables, classes, workers)]
    if not parts:
        return IDLE
    sets = _Sets.joined(parts)
    found = _transfers(sets, classes, workers)
    offsets_2K = np.stack([table.offsets_KR[:, workers.me] for table in tables])
    rounds = []
    for second in (False, True):
        sends = found.chosen(~found.receives_E & (found.second_E == second))
        receives = found.chosen(found.receives_E & (found.second_E == second))
        rounds.append(Round(sends.by_peer(sets, offsets_2K, int(second)), receives.by_peer(sets, offsets_2K, 1)))
    return Moves(_copies(sets, classes, workers, offsets_2K), (rounds[0], rounds[1]))


class _Workers(NamedTuple):
    """The workers by node: within this module they are counted in this order."""

    order: np.ndarray
    node_R: np.ndarray
    begins_M: np.ndarray
    """The first worker of each node."""
    me: int

    @staticmethod
    def ordered(nodes: Sequence[int], rank: int) -> "_Workers":
        order, begins_M, count_M = _grouped(np.array(nodes))
        node_R = np.repeat(np.arange(len(begins_M)), count_M)
        return _Workers(order, node_R, begins_M, int(np.flatnonzero(order == rank)[0]))


class _Table(NamedTuple):
    """Who has which parameter in which pattern (-1: not), and where that begins: of one side."""

    names: tuple[str, ...]
    patterns: list[Pattern]
    kinds_KR: np.ndarray
    offsets_KR: np.ndarray

    @staticmethod
    def of(holdings: Sequence[Holding], names: tuple[str, ...]) -> "_Table":
        rows = {name: row for row, name in enumerate(names)}
        numbers: dict[Pattern, int] = {}
        kinds_KR = np.full((len(rows), len(holdings)), -1, np.int64)
        offsets_KR = np.zeros((len(rows), len(holdings)), np.int64)
        stages: dict[tuple[int, int, int], tuple[np.ndarray, ...]] = {}  # ranks of a stage share these tuples
        for worker, held in enumerate(holdings):
            key = id(held.names), id(held.kinds), id(held.offsets)
            if key not in stages:
                row = np.array([rows.get(name, -1) for name in held.names], np.int64)
                kinds, offsets = np.array(held.kinds, np.int64), np.array(held.offsets, np.int64)
                stages[key] = row[row >= 0], kinds[row >= 0], offsets[row >= 0]
            row, kinds, offsets = stages[key]
            number = np.array([numbers.setdefault(pattern, len(numbers)) for pattern in held.patterns], np.int64)
            kinds_KR[row, worker] = number[kinds]
            offsets_KR[row, worker] = offsets
        return _Table(names, list(numbers), kinds_KR, offsets_KR)


_Tables = tuple[_Table, ...]


class _Classes(NamedTuple):
    """The parameters by class, and how many of the same kind, whoever has them, come before each."""

    order_K: np.ndarray
    first_C: np.ndarray
    count_C: np.ndarray
    turn_K: np.ndarray

    @staticmethod
    def of(tables: _Tables) -> "_Classes":
        order_K, first_C, count_C = _grouped(_numbered(np.concatenate([table.kinds_KR for table in tables], axis=1)))
        by_kind, first, count = _grouped(tables[0].kinds_KR.max(axis=1))
        turn_K = np.empty(len(order_K), np.int64)
        turn_K[by_kind] = np.arange(len(order_K)) - np.repeat(first, count)
        return _Classes(order_K, first_C, count_C, turn_K)

    def parameters(self, class_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each parameter of these classes, one class after another, and whose it is."""
        pair_E, within_E = _counted(self.count_C[class_P])
        return pair_E, self.order_K[self.first_C[class_P][pair_E] + within_E]


def _numbered(rows: np.ndarray) -> np.ndarray:
    """A number for each row of a matrix, equal where the rows are."""
    # np.unique would import numpy.ma, in every worker as it starts.
    rows = np.ascontiguousarray(rows)
    whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    order = np.argsort(whole, kind="stable")
    numbers = np.zeros(len(rows), np.int64)
    numbers[order[1:]] = np.cumsum(whole[order[1:]] != whole[order[:-1]])
    return numbers


def _grouped(number_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The indexes ordered by their numbers; where each number begins among them, and how often it is there."""
    order = np.argsort(number_K, kind="stable")
    first = np.flatnonzero(np.diff(number_K[order], prepend=-2))
    return order, first, np.diff(first, append=len(order))


def _counted(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For 2, 3: whose each is, 0 0 1 1 1, and which of his, 0 1 0 1 2."""
    whose = np.repeat(np.arange(len(counts)), counts)
    return whose, np.arange(len(whose)) - np.repeat(np.cumsum(counts) - counts, counts)


def _geometries(tables: _Tables, classes: _Classes, workers: _Workers) -> Iterator[np.ndarray]:
    """The classes that concern me, those together in which somebody or other has the same patterns."""
    example_C = classes.order_K[classes.first_C]
    present = []
    for table in tables:
        kinds_CR = table.kinds_KR[example_C]
        seen = np.zeros((len(example_C), len(table.patterns) + 1), bool)
        seen[np.arange(len(example_C))[:, None], kinds_CR] = True
        present.append(seen[:, :-1])  # the last column is that of -1
    concern = np.flatnonzero(np.any([table.kinds_KR[example_C, workers.me] >= 0 for table in tables], axis=0))
    order, first, _ = _grouped(_numbered(np.concatenate(present, axis=1)[concern]))
    yield from (alike for alike in np.split(concern[order], first[1:]) if len(alike))


class _Sets(NamedTuple):
    """Sets that concern me, and their rectangles as they lie with me; where I have none on a side, no matter what."""

    class_X: np.ndarray
    number_X: np.ndarray
    """Which set of its class."""
    has_2XR: np.ndarray
    count_X: np.ndarray
    """Rectangles of each set; they follow one another."""
    shape_2N: np.ndarray
    """Rows and runs."""
    at_2N: np.ndarray
    step_2N: np.ndarray

    @staticmethod
    def joined(parts: Sequence["_Sets"]) -> "_Sets":
        return _Sets(
            *(np.concatenate(columns, axis=min(1, columns[0].ndim - 1)) for columns in zip(*parts, strict=True))
        )


def _sets(tables: _Tables, classes: _Classes, alike: np.ndarray, workers: _Workers, meet: _Meet) -> _Sets:
    """Of some classes in which the same patterns occur."""
    example_C = classes.order_K[classes.first_C[alike]]
    column_2CR, patterns, begin = [], [], 0
    for table in tables:
        kinds_CR = table.kinds_KR[example_C]
        present = np.flatnonzero(np.bincount(kinds_CR[0][kinds_CR[0] >= 0]))
        column_2CR.append(np.where(kinds_CR < 0, -1, begin + np.searchsorted(present, kinds_CR)))
        patterns.append(tuple(table.patterns[kind] for kind in present.tolist()))
        begin += len(present)
    try:
        found = meet(patterns[0], patterns[1])
    except ValueError as error:
        raise ValueError(f"{tables[0].names[example_C[0]]}: {error}") from None
    has_HG = np.concatenate([found.has_GH, np.zeros((len(found.has_GH), 1), bool)], axis=1).T  # -1 has nothing
    mine_2CG = [has_HG[column_CR[:, workers.me]] for column_CR in column_2CR]
    class_X, set_X = np.nonzero(mine_2CG[0] | mine_2CG[1])
    has_2XR = np.stack([has_HG[column_CR[class_X], set_X[:, None]] for column_CR in column_2CR])
    set_N, within_N = _counted(found.count_G[set_X])
    rectangle_N = found.first_G[set_X][set_N] + within_N
    my_column_2N = [column_CR[class_X, workers.me][set_N] for column_CR in column_2CR]
    return _Sets(
        alike[class_X],
        set_X,
        has_2XR,
        found.count_G[set_X],
        np.stack([found.rows_Q[rectangle_N], found.runs_Q[rectangle_N]]),
        np.stack([found.at_QH[rectangle_N, column_N] for column_N in my_column_2N]),
        np.stack([found.steps_QH[rectangle_N, column_N] for column_N in my_column_2N]),
    )


class _Having:
    """Which workers have, or lack, which sets, and whose turn it is."""

    def __init__(self, has_XR: np.ndarray, workers: _Workers) -> None:
        self.has_XR = has_XR
        self.count_XM = np.add.reduceat(has_XR.astype(np.int64), workers.begins_M, axis=1)
        self._before_XM = np.cumsum(self.count_XM, axis=1) - self.count_XM
        self._total_X = self.count_XM.sum(axis=1)
        self._order_XR = np.argsort(~has_XR, axis=1, kind="stable")

    def on_node(self, set_E: np.ndarray, node_E: np.ndarray, turn_E: np.ndarray) -> np.ndarray:
        """Of the workers of a node; there is one."""
        index_E = self._before_XM[set_E, node_E] + turn_E % self.count_XM[set_E, node_E]
        return self._order_XR[set_E, index_E]

    def anywhere(self, set_E: np.ndarray, turn_E: np.ndarray) -> np.ndarray:
        return self._order_XR[set_E, turn_E % self._total_X[set_E]]


class _Transfers(NamedTuple):
    """What I send and receive; `second_E`: in the second round."""

    set_E: np.ndarray
    parameter_E: np.ndarray
    peer_E: np.ndarray
    receives_E: np.ndarray
    second_E: np.ndarray

    def chosen(self, those: np.ndarray) -> "_Transfers":
        return _Transfers(*(column[those] for column in self))

    def among(self, workers: _Workers) -> "_Transfers":
        """The same with peers as the caller counts them."""
        return self._replace(peer_E=workers.order[self.peer_E])

    def by_peer(self, sets: _Sets, offsets_2K: np.ndarray, side: int) -> tuple[Transfer, ...]:
        """To or from each peer, parameter by parameter, as I have them on one side."""
        order = np.lexsort((self.set_E, self.parameter_E, self.peer_E))
        set_E, parameter_E, peer_E = self.set_E[order], self.parameter_E[order], self.peer_E[order]
        transfer_N, rectangle_N = _rectangles(sets, set_E)
        offsets_N = sets.at_2N[side, rectangle_N] + offsets_2K[side, parameter_E[transfer_N]]
        columns = np.stack([offsets_N, sets.step_2N[side, rectangle_N], *sets.shape_2N[:, rectangle_N]])
        peer_N = peer_E[transfer_N]
        first = np.flatnonzero(np.diff(peer_N, prepend=-1))
        merged, begins = _merged(columns, peer_N)
        wholes = np.split(merged, np.searchsorted(begins, first[1:]), axis=1)
        parts = np.split(columns[2] * columns[3], first[1:])
        return tuple(
            Transfer(peer, Rectangles(*whole), part)
            for peer, whole, part in zip(peer_N[first].tolist(), wholes, parts, strict=False)
        )


def _transfers(sets: _Sets, classes: _Classes, workers: _Workers) -> _Transfers:
    """All in which I am either side, of both rounds."""
    had, lacking = _Having(sets.has_2XR[0], workers), _Having(sets.has_2XR[1] & ~sets.has_2XR[0], workers)
    crosses_XM = (had.count_XM == 0) & (lacking.count_XM > 0)
    parts = [_near(sets, classes, workers, had, lacking), *_far(sets, classes, workers, had, lacking, crosses_XM)]
    return _Transfers(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _near(sets: _Sets, classes: _Classes, workers: _Workers, had: _Having, lacking: _Having) -> _Transfers:
    """What somebody of my node has and another lacks; I may be either."""
    me, mine = workers.me, workers.node_R[workers.me]
    maybe_XR = lacking.has_XR & (workers.node_R == mine) & (had.count_XM[:, [mine]] > 0)
    maybe_XR &= had.has_XR[:, [me]] | (np.arange(len(workers.node_R)) == me)
    set_P, lacking_P = np.nonzero(maybe_XR)
    place_P = np.cumsum(lacking.has_XR, axis=1)[set_P, lacking_P]
    pair_E, parameter_E = classes.parameters(sets.class_X[set_P])
    turn_E = classes.turn_K[parameter_E] + (sets.number_X[set_P] + place_P)[pair_E]
    set_E, lacking_E = set_P[pair_E], lacking_P[pair_E]
    sender_E = had.on_node(set_E, np.full(len(set_E), mine), turn_E)
    receives_E = lacking_E == me
    found = _Transfers(
        set_E, parameter_E, np.where(receives_E, sender_E, lacking_E), receives_E, np.zeros_like(receives_E)
    )
    return found.chosen(receives_E | (sender_E == me)).among(workers)


def _far(
    sets: _Sets, classes: _Classes, workers: _Workers, had: _Having, lacking: _Having, crosses_XM: np.ndarray
) -> Iterator[_Transfers]:
    """What crosses to a node, from me or to mine, and what is passed on in mine."""
    me, mine = workers.me, workers.node_R[workers.me]
    maybe_XM = crosses_XM & had.has_XR[:, [me]]
    maybe_XM[:, mine] = crosses_XM[:, mine] & lacking.has_XR[:, me]
    set_P, node_P = np.nonzero(maybe_XM)
    place_P = np.cumsum(crosses_XM, axis=1)[set_P, node_P]
    pair_E, parameter_E = classes.parameters(sets.class_X[set_P])
    turn_E = classes.turn_K[parameter_E] + (sets.number_X[set_P] + place_P)[pair_E]
    set_E, node_E = set_P[pair_E], node_P[pair_E]
    receiver_E, sender_E = lacking.on_node(set_E, node_E, turn_E), had.anywhere(set_E, turn_E)
    takes_E, first_E = receiver_E == me, np.zeros(len(set_E), bool)
    crossing = _Transfers(set_E, parameter_E, np.where(takes_E, sender_E, receiver_E), takes_E, first_E)
    yield crossing.chosen(takes_E | (sender_E == me)).among(workers)
    second_E = ~first_E
    given = _Transfers(set_E, parameter_E, receiver_E, second_E, second_E)
    yield given.chosen((node_E == mine) & ~takes_E).among(workers)
    set_T, parameter_T = set_E[takes_E], parameter_E[takes_E]
    others_XR = lacking.has_XR & (workers.node_R == mine)
    others_XR[:, me] = False
    of_T, other_E = np.nonzero(others_XR[set_T])
    sent_E = np.zeros(len(of_T), bool)
    yield _Transfers(set_T[of_T], parameter_T[of_T], other_E, sent_E, ~sent_E).among(workers)


def _rectangles(sets: _Sets, set_E: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rectangles of these sets, one set after another, and whose they are."""
    transfer_N, within_N = _counted(sets.count_X[set_E])
    first_X = np.cumsum(sets.count_X) - sets.count_X
    return transfer_N, first_X[set_E][transfer_N] + within_N


def _copies(sets: _Sets, classes: _Classes, workers: _Workers, offsets_2K: np.ndarray) -> tuple[Rectangles, Rectangles]:
    """What I have on both sides, run beside run."""
    set_P = np.flatnonzero(sets.has_2XR[:, :, workers.me].all(axis=0))
    pair_E, parameter_E = classes.parameters(sets.class_X[set_P])
    transfer_N, rectangle_N = _rectangles(sets, set_P[pair_E])
    offsets_2N = sets.at_2N[:, rectangle_N] + offsets_2K[:, parameter_E[transfer_N]]
    steps_2N, (rows_N, runs_N) = sets.step_2N[:, rectangle_N], sets.shape_2N[:, rectangle_N]
    one = (steps_2N == runs_N).all(axis=0)
    rows_N, runs_N = np.where(one, 1, rows_N), np.where(one, rows_N * runs_N, runs_N)
    source, target = (Rectangles(*side, rows_N, runs_N) for side in zip(offsets_2N, steps_2N, strict=True))
    return source, target


def _merged(columns: np.ndarray, peer_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same elements in the same order, a peer's neighbours of the buffer as one run, and where each begins in N."""
    offsets, steps, rows, runs = columns
    one = (rows == 1) | (steps == runs)
    rows, runs = np.where(one, 1, rows), np.where(one, rows * runs, runs)
    joins = one[1:] & one[:-1] & (offsets[1:] == offsets[:-1] + runs[:-1]) & (peer_N[1:] == peer_N[:-1])
    begins = np.flatnonzero(np.concatenate([[True], ~joins]))[: len(rows)]
    rows, runs = rows[begins], np.add.reduceat(runs, begins) if len(begins) else runs
    return np.stack([offsets[begins], np.where(rows == 1, runs, steps[begins]), rows, runs]), begins
