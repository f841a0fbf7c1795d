"""What each stage of a pipeline does, one thing after another. By numbers of micro-batches alone: no tensors, no time.

Stages are numbered from 0, where tokens enter, to `stages` - 1, where logits arise.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal, NamedTuple

from hpcrl.data.slots import Scheduler


class Compute(NamedTuple):
    """A pass of one micro-batch through a stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


class Exchange(NamedTuple):
    """What two neighbours, of which `lower` is the first, send each other at once, each to be received before either
    goes on: the rows of micro-batch `forward` to the second, the gradient of micro-batch `backward` to the first.

    Both have the same exchanges in the same order, so that none waits for what the other will never send.
    """

    lower: int
    forward: int | None = None
    backward: int | None = None


Step = Compute | Exchange


def training_order(stage: int, stages: int, micro_batches: int) -> Iterator[Step]:
    """1F1B (Narayanan et al., "Memory-efficient pipeline-parallel DNN training", 2021): after `stages - stage`
    forward passes each forward pass follows a backward pass, so that no stage holds more micro-batches."""
    ahead = min(stages - 1 - stage, micro_batches)
    first, last = stage == 0, stage == stages - 1
    for i in range(ahead):
        yield from () if first else (Exchange(stage - 1, forward=i),)
        yield Compute("forward", i)
        yield Exchange(stage, forward=i)
    if ahead < micro_batches and not first:
        yield Exchange(stage - 1, forward=ahead)
    for i in range(micro_batches):
        entering: int | None = ahead + i if ahead + i < micro_batches else None
        if entering is not None:
            yield Compute("forward", entering)
        if not last:
            yield Exchange(stage, entering, i)
        yield Compute("backward", i)
        if not first:
            coming = ahead + i + 1
            yield Exchange(stage - 1, coming if coming < micro_batches else None, i)


def inference_order(stage: int, stages: int, micro_batches: int) -> Iterator[Step]:
    """Forward passes only, one micro-batch after another."""
    for i in range(micro_batches):
        if stage > 0:
            yield Exchange(stage - 1, forward=i)
        yield Compute("forward", i)
        if stage < stages - 1:
            yield Exchange(stage, forward=i)


class Tick(NamedTuple):
    """What a stage does at one tick of generation: it sends and receives, all at once, then makes a visit. Each is the
    number of a visit; None where there is nothing.

    Visit v is to cohort v modulo `stages`, and is made by all stages, one tick after another.
    """

    visit: int | None
    """Made at this tick, by the rows that the stage before made a tick ago."""
    drawn: int | None
    """Made by the last stage a tick ago: its tokens go from there to all other stages."""


def generation_ticks(stage: int, stages: int) -> Iterator[Tick]:
    """Without end. The first stage gets tokens as it comes to their cohort again, all others before: they know how many
    rows they will get. So one exchange a tick is enough."""
    for tick in count():
        yield Tick(*(None if number < 0 else number for number in (tick - stage, tick - stages)))


def cohorts(
    stages: int,
    prompt_lengths: Sequence[int],
    slots: int,
    prefill_tokens: int,
    prompts: Sequence[int],
    *,
    limits: Sequence[int] | None = None,
    spare: int | None = None,
) -> list[Scheduler]:
    """The schedulers of as many cohorts as there are stages, each of a part of the slots; a row waits for all of them,
    and enters the first that has room when it is visited."""
    waiting = deque(range(len(prompt_lengths)))
    return [
        Scheduler(prompt_lengths, -(-slots // stages), prefill_tokens, prompts, waiting, limits=limits, spare=spare)
        for _ in range(stages)
    ]
