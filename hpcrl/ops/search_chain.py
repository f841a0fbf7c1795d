"""The search for an allocation in Python: what csrc/search.cpp computes, proposal by proposal, to be read first.

Ranks are told one by one here, and a schedule is a queue of what is ready; there they are ranges and bits.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from hpcrl.ops.search_problem import KINDS, QUANTILES, SHIFT, Call, Chain, Found, Option, Problem, Score, Span

_MASK = 2**64 - 1


class SplitMix64:
    """Random numbers of 64 bits (Steele, Lea and Flood 2014)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        """Of 0 to `bound`, which is not in it."""
        return ((self.next() >> 32) * bound) >> 32


class Need(NamedTuple):
    """What a worker has at most."""

    bytes: int
    moves: bool
    """Whether in the move that the call waits for."""
    call: int


class Scorer:
    """Scores the plans of a problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._ranks = [[rank for span in mesh.ranges for rank in range(*span)] for mesh in problem.meshes]

    def __call__(self, plan: Sequence[int]) -> Score:
        options = [call.options[taken] for call, taken in zip(self._problem.calls, plan, strict=True)]
        models = _Models.of(self._problem.calls, options)
        ends = [0] * self._problem.steps
        for span in self._spans(options, models):
            ends[span.step] = max(ends[span.step], span.end)
        return Score(
            sum(max(0, need.bytes - self._problem.capacity) for need in self._needs(options, models).values()),
            ends[self._problem.last] - ends[self._problem.first],
            sum(mover == number for number, mover in enumerate(models.movers)),
        )

    def needs(self, plan: Sequence[int]) -> dict[int, Need]:
        """Rank → what it has at most."""
        options = [call.options[taken] for call, taken in zip(self._problem.calls, plan, strict=True)]
        return self._needs(options, _Models.of(self._problem.calls, options))

    def spans(self, plan: Sequence[int]) -> list[Span]:
        """What a plan's score is of: all calls and moves, in the order in which they begin."""
        options = [call.options[taken] for call, taken in zip(self._problem.calls, plan, strict=True)]
        return sorted(self._spans(options, _Models.of(self._problem.calls, options)), key=lambda span: span.begun)

    def _needs(self, options: Sequence[Option], models: "_Models") -> dict[int, Need]:
        stays: dict[int, int] = {}
        most: dict[int, tuple[int, bool, int]] = {}
        moving: dict[tuple[int, int], int] = {}
        movers = [it for it, mover in enumerate(models.movers) if mover == it]
        for number, option in enumerate(options):
            model = models.of_call[number]
            ranks, is_kept = self._ranks[option.mesh], model in models.kept
            each = len(ranks) // len(option.stages)
            moves = [it for it in movers if number in (it, self._problem.calls[it].home)]
            for stage, (own, held) in enumerate(zip(option.stages, options[model].stages, strict=True)):
                comes = held.away + (0 if is_kept else held.lasting)
                for rank in ranks[stage * each : (stage + 1) * each]:
                    if model == number and is_kept:
                        stays[rank] = stays.get(rank, 0) + held.lasting
                    if rank not in most or own.passing + comes > most[rank][0]:
                        most[rank] = own.passing + comes, False, number
                    for move in moves:
                        moving[rank, move] = moving.get((rank, move), 0) + own.moving + comes
        for (rank, move), size in moving.items():
            if size > most[rank][0]:
                most[rank] = size, True, move
        return {rank: Need(stays.get(rank, 0) + size, moves, call) for rank, (size, moves, call) in most.items()}

    def _spans(self, options: Sequence[Option], models: "_Models") -> Iterator[Span]:
        """Whoever is ready first begins first, once all of its workers are free."""
        schedule = _Schedule(self._problem, models)
        free: dict[int, int] = {}
        while schedule.queue:
            ready, step, moves, number = heapq.heappop(schedule.queue)
            home = self._problem.calls[number].home
            ranks = frozenset([*self._ranks[options[number].mesh], *(self._ranks[options[home].mesh] if moves else ())])
            begun = max(ready, *(free.get(rank, 0) for rank in ranks))
            end = begun + (models.moving[number] if moves else options[number].nanoseconds + models.waiting[number])
            free |= dict.fromkeys(ranks, end)
            schedule.ended((step, moves, number), end)
            yield Span(step, moves, number, begun, end, ranks)


@dataclass
class _Models:
    """Which calls have a model in common, and what must be moved."""

    of_call: list[int] = field(default_factory=list)
    """Its home, or the first call at the same place."""
    movers: list[int] = field(default_factory=list)
    """The call whose move brings a call its parameters; -1 of none."""
    moving: list[int] = field(default_factory=list)
    """How long that lasts."""
    waiting: list[int] = field(default_factory=list)
    """What a call at its role's home lasts longer there."""
    kept: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, calls: Sequence[Call], options: Sequence[Option]) -> "_Models":
        models = cls()
        for call, option in zip(calls, options, strict=True):
            home, place = options[call.home], option.place
            alike = [it for it in range(len(calls)) if (calls[it].role, options[it].place) == (call.role, place)]
            model = call.home if place == home.place else alike[0]
            models.of_call.append(model)
            moves = call.lag > 0 and model != call.home
            models.movers.append(next(it for it in alike if calls[it].lag == call.lag) if moves else -1)
            lasts = _moving(call, calls[call.home], home.place, place) if call.lag > 0 else 0
            models.moving.append(lasts if moves else 0)
            models.waiting.append(0 if moves else lasts)
        models.kept = {models.of_call[number] for number, option in enumerate(options) if not option.is_released}
        return models


def _moving(call: Call, home: Call, from_: int, to: int) -> int:
    assert call.moves_HP is not None
    return int(call.moves_HP[home.places[from_], call.places[to]])


_Task = tuple[int, bool, int]
"""Step, whether it is the move that a call waits for, and the call."""


class _Schedule:
    """What is ready, of calls and moves of all steps."""

    def __init__(self, problem: Problem, models: _Models) -> None:
        steps = problem.steps
        self.ends = [0] * steps
        self.queue: list[tuple[int, int, bool, int]] = []
        self._ahead = problem.ahead
        self._waits: dict[_Task, int] = {}
        self._ready: dict[_Task, int] = {}
        self._later: dict[_Task, list[_Task]] = {}
        for step in range(steps):
            for number, call in enumerate(problem.calls):
                waits = [(step - it.steps, False, it.call) for it in call.after]
                if models.movers[number] >= 0 and step >= call.lag:
                    waits.append((step, True, models.movers[number]))
                if models.movers[number] == number and step >= call.lag:
                    self._enter((step, True, number), [(step - call.lag, False, call.home)])
                self._enter((step, False, number), [task for task in waits if task[0] >= 0])
        self._left = [sum(task[0] == step for task in self._waits) for step in range(steps)]
        for task, waits_for in self._waits.items():
            if not waits_for:
                heapq.heappush(self.queue, (0, *task))

    def ended(self, task: _Task, end: int) -> None:
        step = task[0]
        self.ends[step] = max(self.ends[step], end)
        for later in self._later.get(task, ()):
            self._come(later, end)
        self._left[step] -= 1
        if not self._left[step]:
            for later in [it for it in self._waits if it[0] == step + self._ahead]:
                self._come(later, self.ends[step])

    def _enter(self, task: _Task, waits: list[_Task]) -> None:
        self._waits[task] = len(waits) + (task[0] >= self._ahead)
        for before in waits:
            self._later.setdefault(before, []).append(task)

    def _come(self, task: _Task, when: int) -> None:
        self._ready[task] = max(self._ready.get(task, 0), when)
        self._waits[task] -= 1
        if not self._waits[task]:
            heapq.heappush(self.queue, (self._ready[task], *task))


class Best:
    """The best plans that were seen; of those that are worth exactly the same, as on other workers, the first."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self.found: list[Found] = []

    def see(self, found: Found) -> None:
        same = next((it for it in self.found if it.score == found.score), None)
        others = [it for it in self.found if it is not same]
        self.found = sorted([*others, found if same is None else min(found, same)])[: self._keep]


def run_chain(problem: Problem, chain: Chain, keep: int, trace: list[tuple[int, ...]] | None = None) -> list[Found]:
    """The best plans that it has seen, best first. A trace is as of `hpcrl.ops.search.compiled_chain`."""
    scorer, random, best = Scorer(problem), SplitMix64(chain.seed), Best(keep)
    free = [number for number, call in enumerate(problem.calls) if len(call.options) > 1]
    plan = list(chain.start)
    score = scorer(plan)
    best.see(Found(score, tuple(plan)))
    for number in range(chain.proposals if free else 0):
        kind = KINDS[random.below(len(KINDS))]
        other = _propose(problem, random, free, kind, plan)
        if other is None or other == plan:
            kind = -1
        else:
            found = Found(scorer(other), tuple(other))
            best.see(found)
            beta = chain.hot + (chain.cold - chain.hot) * number // chain.proposals
            if _accepts(problem, random, score, found.score, beta):
                plan, score = other, found.score
        if trace is not None:
            trace.append((kind, *score))
    return best.found


def run_all(problem: Problem, keep: int) -> list[Found]:
    """The best of all plans that there are."""
    scorer, best = Scorer(problem), Best(keep)
    for plan in product(*(range(len(call.options)) for call in problem.calls)):
        best.see(Found(scorer(plan), plan))
    return best.found


def _propose(
    problem: Problem, random: SplitMix64, free: Sequence[int], kind: int, plan: Sequence[int]
) -> list[int] | None:
    """Another plan; None where it finds none."""
    calls, number = problem.calls, free[random.below(len(free))]
    changed, now = list(plan), calls[number].options[plan[number]]

    def pick(call: int, fits: list[int]) -> bool:
        if fits:
            changed[call] = fits[random.below(len(fits))]
        return bool(fits)

    def on(mesh: int) -> list[int]:
        return [it for it, option in enumerate(calls[number].options) if option.mesh == mesh]

    def at(call: int, place: int) -> list[int]:
        return [it for it, option in enumerate(calls[call].options) if option.place == place]

    if kind == 0:
        return changed if pick(number, list(range(len(calls[number].options)))) else None
    if kind == 1:
        near = problem.meshes[now.mesh].near
        return changed if near and pick(number, on(near[random.below(len(near))])) else None
    if kind == 4:
        home = calls[number].home
        return changed if pick(number, at(number, calls[home].options[plan[home]].place)) else None
    if kind == 5:
        return changed if pick(number, at(number, now.place)) else None
    other = random.below(len(calls))
    taken = calls[other].options[plan[other]]
    if kind == 2:
        return changed if pick(number, on(taken.mesh)) else None
    return changed if pick(number, at(number, taken.place)) and pick(other, at(other, now.place)) else None


def _accepts(problem: Problem, random: SplitMix64, now: Score, then: Score, beta: int) -> bool:
    """What is not worse always; what is, the less the more it is so: first of bytes too many, then of time."""
    if then <= now:
        return True
    if then.excess != now.excess:
        more, of = then.excess - now.excess, problem.capacity
    else:
        more, of = then.nanoseconds - now.nanoseconds, max(1, now.nanoseconds)
    return (more * beta << SHIFT) // of <= QUANTILES[random.next() >> 52]
