"""Orders of a pipeline's stages, run by stages that wait for each other at every exchange."""

import random
from collections import Counter

import pytest

from hpcrl.data.pipeline_order import (
    Compute,
    Exchange,
    cohorts,
    generation_ticks,
    inference_order,
    training_order,
)

SHAPES = [(stages, micro_batches) for stages in range(1, 9) for micro_batches in (0, 1, 2, 3, 5, 8, 13)]


def run(order, stages, micro_batches):
    """Each stage's steps, made one by one; a stage goes on from an exchange once its neighbour is at the same one.

    Returns what was computed, in an order in which it can be. Fails where all wait.
    """
    waiting = [list(order(stage, stages, micro_batches)) for stage in range(stages)]
    done = []
    while any(waiting):
        before = sum(map(len, waiting))
        for stage, steps in enumerate(waiting):
            while steps and isinstance(steps[0], Compute):
                done.append((stage, steps.pop(0)))
        for stage in range(stages - 1):
            lower, upper = waiting[stage], waiting[stage + 1]
            if lower and upper and lower[0] == upper[0] and lower[0].lower == stage:
                lower.pop(0)
                upper.pop(0)
        assert sum(map(len, waiting)) < before, f"all wait: {[steps[:1] for steps in waiting]}"
    return done


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
@pytest.mark.parametrize("order", [training_order, inference_order])
def test_stages_that_wait_for_each_other_at_every_exchange_all_come_to_the_end(order, stages, micro_batches):
    kinds = ["forward", "backward"] if order is training_order else ["forward"]
    done = run(order, stages, micro_batches)
    assert Counter(done) == Counter(
        (stage, Compute(kind, i)) for stage in range(stages) for kind in kinds for i in range(micro_batches)
    )
    at = {what: place for place, what in enumerate(done)}
    for stage in range(stages):
        for kind in kinds:
            places = [at[stage, Compute(kind, i)] for i in range(micro_batches)]
            assert places == sorted(places)
    for stage in range(stages - 1):
        for i in range(micro_batches):
            assert at[stage, Compute("forward", i)] < at[stage + 1, Compute("forward", i)]
            if "backward" in kinds:
                assert at[stage + 1, Compute("backward", i)] < at[stage, Compute("backward", i)]


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
def test_a_stage_holds_no_more_micro_batches_than_stages_from_it_on(stages, micro_batches):
    for stage in range(stages):
        held, most = 0, 0
        for step in training_order(stage, stages, micro_batches):
            if isinstance(step, Compute):
                held += 1 if step.kind == "forward" else -1
                most = max(most, held)
        assert held == 0
        assert most == min(stages - stage, micro_batches)


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
@pytest.mark.parametrize("order", [training_order, inference_order])
def test_what_is_sent_was_computed_and_what_is_computed_was_received(order, stages, micro_batches):
    for stage in range(stages):
        have = set()
        for step in order(stage, stages, micro_batches):
            if isinstance(step, Compute):
                if step.kind == "forward":
                    assert stage == 0 or ("rows", step.micro_batch) in have
                else:
                    assert ("forward", step.micro_batch) in have
                    assert stage == stages - 1 or ("gradient", step.micro_batch) in have
                have.add(step)
                continue
            assert isinstance(step, Exchange) and step.lower in (stage - 1, stage)
            assert (step.forward, step.backward) != (None, None)
            mine, theirs = ("backward", "rows") if step.lower < stage else ("forward", "gradient")
            sent, received = (step.backward, step.forward) if step.lower < stage else (step.forward, step.backward)
            assert sent is None or (mine, sent) in have
            if received is not None:
                have.add((theirs, received))


def test_one_stage_exchanges_nothing():
    assert list(training_order(0, 1, 2)) == [(kind, i) for i in range(2) for kind in ("forward", "backward")]


class Stage:
    """Generates by schedulers of its own: row r ends after `ends[r]` tokens. Draws on the last stage alone."""

    def __init__(self, number, stages, lengths, ends, slots):
        self.number, self.stages = number, stages
        self.ends = ends
        self.schedulers = cohorts(stages, lengths, slots, 10**9, range(len(lengths)))
        self.seats = [[] for _ in range(stages)]
        self.left = list(ends)
        self.passes, self.tokens = {}, {}
        self.admitted, self.sizes = [], []

    def settle(self, visit):
        """Take the tokens of a visit: (row, whether it has ended)."""
        if (span := self.passes[visit]) is None:
            return
        cohort, drawn = visit % self.stages, self.tokens[visit]
        seats, ended = self.seats[cohort], []
        for slot, (row, end) in zip(span, drawn, strict=True):
            assert seats[slot] == row
            if end:
                ended.append(slot)
        for move in self.schedulers[cohort].retire(ended):
            seats[move.target] = seats[move.source]
        del seats[self.schedulers[cohort].active :]

    def plan(self, visit):
        scheduler, seats = self.schedulers[visit % self.stages], self.seats[visit % self.stages]
        first = scheduler.active
        rows = scheduler.admit().rows
        seats += rows
        self.admitted += rows
        self.sizes.append(len(seats))
        span = range(first, len(seats)) if rows else range(len(seats))
        self.passes[visit] = span if span else None

    def draw(self, visit):
        if (span := self.passes[visit]) is None:
            return
        rows = [self.seats[visit % self.stages][slot] for slot in span]
        for row in rows:
            self.left[row] -= 1
        self.tokens[visit] = [(row, self.left[row] == 0) for row in rows]


@pytest.mark.parametrize("seed", range(40))
def test_every_stage_knows_who_has_ended_when_a_cohort_comes_to_it_and_none_is_idle(seed):
    draw = random.Random(seed)
    stages, rows = draw.randint(1, 5), draw.randint(1, 40)
    lengths, ends = [draw.randint(1, 9) for _ in range(rows)], [draw.randint(1, 12) for _ in range(rows)]
    slots = draw.randint(1, 12)
    line = [Stage(number, stages, lengths, ends, slots) for number in range(stages)]
    orders = [generation_ticks(number, stages) for number in range(stages)]
    made = [[] for _ in line]
    for _ in range(40 * 12 + 20 * stages):
        ticks = [next(order) for order in orders]
        assert len({tick.drawn for tick in ticks}) == 1
        for number, (stage, tick) in enumerate(zip(line, ticks, strict=True)):  # rows come of visits that are planned
            if tick.visit is not None and number > 0:
                assert made[number - 1][-1] == tick.visit
                stage.plan(tick.visit)
        drawn = ticks[-1].drawn
        if drawn is not None:
            assert drawn == made[-1][-1]
            for stage in line[:-1]:
                stage.tokens[drawn] = line[-1].tokens.get(drawn)
                stage.settle(drawn)
        for number, (stage, tick) in enumerate(zip(line, ticks, strict=True)):
            if tick.visit is None:
                continue
            if number == 0:
                stage.plan(tick.visit)
            made[number].append(tick.visit)
            if number == stages - 1:
                stage.draw(tick.visit)
                stage.settle(tick.visit)
    assert not any(line[-1].left)
    for number, stage in enumerate(line):
        assert stage.admitted == list(range(rows))
        assert max(stage.sizes) <= -(-slots // stages)
        assert made[number] == list(range(len(made[number])))  # a visit at every tick
        common = min(len(made[number]), len(made[-1]))
        assert [stage.passes[v] for v in range(common)] == [line[-1].passes[v] for v in range(common)]
