"""How long pipelines take, against clocks that are turned by hand."""

import heapq
from collections.abc import Iterator

import numpy as np
import pytest

from hpcrl.data.pipeline_order import Compute, Exchange, Step, inference_order, training_order
from hpcrl.ops.library import compiled
from hpcrl.placement.pipeline_time import Played, duration, in_python, visits_duration
from hpcrl.placement.visits import Visits


def played(stages: int, count: int, trains: bool, sent: int = 7, seed: int = 0) -> Played:
    draw = np.random.default_rng(seed)
    forward, backward = (draw.integers(10, 100, (stages, count)) for _ in range(2))
    return Played(forward, backward if trains else None, np.full(count, sent))


def by_hand(of: Played) -> float:
    """Every stage a process, woken a nanosecond at a time: each looks whether what it waits for has come to pass."""
    stages, count = of.forward_SM.shape
    order = inference_order if of.backward_SM is None else training_order
    begun: dict[tuple[int, Exchange], int] = {}

    def over(step: Exchange) -> float:
        sides = [begun.get((side, step)) for side in (step.lower, step.lower + 1)]
        if None in sides:
            return float("inf")
        sent = [of.sent_M[it] for it in (step.forward, step.backward) if it is not None]
        return max(sides) + max(sent)  # type: ignore[type-var, operator]

    def process(stage: int) -> Iterator[float]:
        now, sent = 0.0, list[Exchange]()
        steps: Iterator[Step] = order(stage, stages, count)
        for step in steps:
            if isinstance(step, Compute):
                table = of.forward_SM if step.kind == "forward" else of.backward_SM
                assert table is not None
                now += int(table[stage, step.micro_batch])
                while (time := (yield now)) < now:  # type: ignore[func-returns-value]
                    pass
                continue
            following = step.lower == stage
            sends = (step.forward if following else step.backward) is not None
            receives = (step.backward if following else step.forward) is not None
            while sends and sent and over(sent[-1]) > now:
                time = yield now + 1  # type: ignore[func-returns-value]
                now = max(now, time)
            begun.setdefault((stage, step), int(now))
            while receives and over(step) > now:
                time = yield now + 1  # type: ignore[func-returns-value]
                now = max(now, time)
            sent = [] if receives else [step] if sends else sent
        while sent and over(sent[-1]) > now:
            time = yield now + 1  # type: ignore[func-returns-value]
            now = max(now, time)
        ends.append(now)

    ends: list[float] = []
    running = [process(stage) for stage in range(stages)]
    queue = [(next(each), stage) for stage, each in enumerate(running)]
    heapq.heapify(queue)
    while queue:
        time, stage = heapq.heappop(queue)
        try:
            heapq.heappush(queue, (running[stage].send(time), stage))  # type: ignore[attr-defined]
        except StopIteration:
            continue
    return max(ends)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(("stages", "count"), [(2, 1), (2, 5), (3, 4), (4, 9), (4, 2)])
def test_a_pipeline_lasts_as_long_as_clocks_say_that_are_turned_by_hand(stages: int, count: int, trains: bool) -> None:
    for seed in range(5):
        of = played(stages, count, trains, seed=seed)
        assert abs(duration(of) - by_hand(of)) <= 2 * stages * count, (stages, count, trains)


@pytest.mark.parametrize("trains", [True, False])
def test_compiled_it_lasts_as_long_to_the_bit(trains: bool) -> None:
    assert compiled() is not None
    draw = np.random.default_rng(1)
    for stages, count in ((2, 1), (2, 7), (3, 1), (5, 12), (8, 3), (16, 40)):
        shape = (stages, count)
        of = Played(
            draw.gamma(2.0, 1e6, shape), draw.gamma(2.0, 2e6, shape) if trains else None, draw.gamma(1, 1e5, count)
        )
        assert duration(of) == in_python(of)


def test_equal_micro_batches_have_the_bubble_of_the_formula() -> None:
    forward, backward = np.full((4, 8), 10), np.full((4, 8), 20)
    assert duration(Played(forward, backward, np.zeros(8))) == (8 + 4 - 1) * 30
    assert duration(Played(forward, None, np.zeros(8))) == (8 + 4 - 1) * 10


def test_a_stage_alone_takes_the_sum_and_no_micro_batch_takes_nothing() -> None:
    of = played(1, 6, trains=True)
    assert of.backward_SM is not None
    assert duration(of) == of.forward_SM.sum() + of.backward_SM.sum()
    assert duration(Played(np.zeros((3, 0)), None, np.zeros(0))) == 0


def test_nothing_gets_faster_where_a_micro_batch_gets_slower() -> None:
    for seed in range(20):
        of = played(3, 5, trains=True, seed=seed)
        slower = of.forward_SM.copy()
        slower[seed % 3, seed % 5] += 50
        assert duration(of._replace(forward_SM=slower)) >= duration(of)


def test_a_tick_of_a_generation_lasts_as_long_as_its_slowest_stage() -> None:
    costs = [np.array([1.0, 5, 2]), np.array([4.0, 1, 9])]
    assert visits_duration(costs, np.zeros(3), turns(1, 1, 1)) == 1 + max(5, 4) + max(2, 1) + 9
    assert visits_duration(costs[:1], np.zeros(3), turns(1, 1, 1)) == 8


@pytest.mark.parametrize("alike", [(1,), (2,), (3, 1), (1, 4, 1), (5, 2, 9)])
def test_stages_that_take_as_long_are_played_together_like_each_by_itself(alike: tuple[int, ...]) -> None:
    draw = np.random.default_rng(len(alike))
    each, sent, of = draw.random((len(alike), 4)), draw.random(4), turns(2, 1, 3, 1)
    costs = [costs_V for costs_V, stages in zip(each, alike, strict=True) for _ in range(stages)]
    told = [costs_V[of.order_V] for costs_V in costs]
    ticks = [[0.0] * stage + costs_V.tolist() + [0.0] * (len(told) - 1 - stage) for stage, costs_V in enumerate(told)]
    expected = sum(map(max, zip(*ticks, strict=True))) + (sent[of.order_V].sum() if len(told) > 1 else 0.0)
    assert visits_duration(costs, sent, of) == pytest.approx(expected, rel=1e-12)


def turns(*times: int) -> Visits:
    """Visits to one cohort, made so many times."""
    nothing = np.zeros(len(times), np.int64)
    return Visits(nothing, nothing, nothing, nothing, np.array(times), 1)
