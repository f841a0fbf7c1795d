"""The search for an allocation: compiled, or in Python with the same proposals and the same answer.

Plans are scored by a list schedule over some steps, and changed at random, one proposal after another (Metropolis et
al. 1953; of plans, Mei et al. 2024, arXiv:2406.14088, section 5). A seed has one answer on any machine.
"""

import ctypes
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from hpcrl.ops.library import compiled
from hpcrl.ops.search_chain import Scorer, run_all, run_chain
from hpcrl.ops.search_problem import KINDS, QUANTILES, Call, Chain, Found, Problem, Score


def score_plans(problem: Problem, plans: Sequence[Sequence[int]]) -> list[Score]:
    """What each of these plans is worth."""
    library = _library()
    if library is None:
        scorer = Scorer(problem)
        return [scorer(plan) for plan in plans]
    tables = _Tables(problem)
    given, scores_N3 = tables.plans(plans), np.empty((len(plans), 3), np.int64)
    library.hpcrl_score_plans(tables.pointer, _at(given), ctypes.c_int64(len(plans)), _at(scores_N3))
    return [Score(*row) for row in scores_N3.tolist()]


def search_chain(problem: Problem, chain: Chain, keep: int = 8) -> list[Found]:
    """The best plans that a chain has seen, best first; of equal ones, those of the lower options.

    Raises:
        ValueError: see `Problem.check` and `Chain.check`.
    """
    problem.check()
    chain.check(problem)
    return run_chain(problem, chain, keep) if _library() is None else compiled_chain(problem, chain, keep)


def search_all(problem: Problem, keep: int = 8) -> list[Found]:
    """The best of all plans that there are. Raises ValueError: see `Problem.check`."""
    problem.check()
    library = _library()
    if library is None:
        return run_all(problem, keep)
    tables = _Tables(problem)
    plans, scores = tables.room(keep)
    count = library.hpcrl_search_all(tables.pointer, ctypes.c_int64(keep), _at(plans), _at(scores))
    return tables.found(plans[:count], scores[:count])


def compiled_chain(problem: Problem, chain: Chain, keep: int, trace_N4: np.ndarray | None = None) -> list[Found]:
    """By the compiled version, which must be there. A trace gets a row of each proposal: its kind, -1 where it proposed
    nothing, and the score of the plan that the chain has after it."""
    library = _library()
    assert library is not None
    tables = _Tables(problem)
    start, (plans, scores) = tables.plans([chain.start]), tables.room(keep)
    count = library.hpcrl_search_chain(
        tables.pointer,
        _at(start),
        ctypes.c_uint64(chain.seed),
        *map(ctypes.c_int64, (chain.proposals, chain.hot, chain.cold, keep)),
        _at(plans),
        _at(scores),
        None if trace_N4 is None else _at(trace_N4),
    )
    return tables.found(plans[:count], scores[:count])


def is_compiled() -> bool:
    """Whether searches are fast here."""
    return _library() is not None


def _library() -> ctypes.CDLL | None:
    library = compiled()
    if library is None:
        return None
    library.hpcrl_search_chain.restype = library.hpcrl_search_all.restype = ctypes.c_int64
    return library


class _Tables:
    """A problem as csrc/search.cpp reads it: numbers, and the addresses of arrays, which live as long as this does."""

    def __init__(self, problem: Problem) -> None:
        calls = problem.calls
        self._starts = np.array([0, *accumulate(len(call.options) for call in calls)], np.int64)
        self._arrays = [_array(column) for column in self._columns(problem)]
        sizes = (len(calls), len(problem.meshes), problem.places, problem.capacity)
        steps = (problem.steps, problem.ahead, problem.first, problem.last)
        whole = [*sizes, *steps, *(array.ctypes.data for array in self._arrays)]
        self._struct = (ctypes.c_int64 * len(whole))(*whole)

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(self._struct))

    def plans(self, plans: Sequence[Sequence[int]]) -> np.ndarray:
        """Options are counted over all calls there."""
        return np.array(plans, np.int64).reshape(len(plans), -1) + self._starts[:-1]

    def room(self, keep: int) -> tuple[np.ndarray, np.ndarray]:
        """For so many plans and their scores."""
        return np.empty((keep, len(self._starts) - 1), np.int64), np.empty((keep, 3), np.int64)

    def found(self, plans: np.ndarray, scores: np.ndarray) -> list[Found]:
        rows = zip(scores.tolist(), (plans - self._starts[:-1]).tolist(), strict=True)
        return [Found(Score(*score), tuple(plan)) for score, plan in rows]

    def _columns(self, problem: Problem) -> Iterable[Iterable[int]]:
        """In the order of the C++ struct's pointers."""
        calls, meshes = problem.calls, problem.meshes
        options = [option for call in calls for option in call.options]
        stages = [stage for option in options for stage in option.stages]
        ranges = [each for mesh in meshes for each in mesh.ranges]
        later = [[(other, it.steps) for other, of in enumerate(calls) for it in of.after if it.call == number]
                 for number in range(len(calls))]  # fmt: skip
        moves = [_moves(call) for call in calls]
        yield self._starts
        yield [option.mesh for option in options]
        yield [option.place for option in options]
        yield [call.places[option.place] for call in calls for option in call.options]
        yield [option.nanoseconds for option in options]
        yield [option.is_released for option in options]
        yield _bounds(option.stages for option in options)
        yield [stage.lasting for stage in stages]
        yield [stage.passing for stage in stages]
        yield [stage.away for stage in stages]
        yield [stage.moving for stage in stages]
        yield _bounds(mesh.ranges for mesh in meshes)
        yield [first for first, _ in ranges]
        yield [last for _, last in ranges]
        yield [call.home for call in calls]
        yield [call.role for call in calls]
        yield [call.lag for call in calls]
        yield _bounds(moves)
        yield [len(call.places) for call in calls]
        yield np.concatenate(moves)
        yield _bounds(later)
        yield [other for call in later for other, _ in call]
        yield [steps for call in later for _, steps in call]
        yield self._found_by(calls, len(meshes), "mesh")
        yield self._found_by(calls, problem.places, "place")
        yield _bounds(mesh.near for mesh in meshes)
        yield [near for mesh in meshes for near in mesh.near]
        yield KINDS
        yield QUANTILES

    def _found_by(self, calls: Sequence[Call], count: int, name: str) -> np.ndarray:
        """Of each call, where its options with each number begin, and end: those with one number are neighbours."""
        found = [
            start + np.searchsorted([getattr(option, name) for option in call.options], np.arange(count + 1))
            for call, start in zip(calls, self._starts.tolist(), strict=False)
        ]
        return np.concatenate(found)


def _moves(call: Call) -> np.ndarray:
    return np.zeros(0, np.int64) if call.moves_HP is None else call.moves_HP.ravel()


def _bounds(lists: Iterable[Sequence[object] | np.ndarray]) -> list[int]:
    """Where each list begins, and the last one ends, in all of them together."""
    return [0, *accumulate(map(len, lists))]


def _array(column: Iterable[int]) -> np.ndarray:
    return np.ascontiguousarray(column if isinstance(column, np.ndarray) else list(column), np.int64)


def _at(array: np.ndarray) -> ctypes.c_void_p:
    assert array.dtype == np.int64 and array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
