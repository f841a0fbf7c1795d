"""Slots that wait for the longest response: of steps that draw what they train on, and of steps with rows in flight.

The real scheduler of slots and the real choice of rows, on given lengths; a token of every slot takes one turn, and a
prefill none. Deterministic.
"""

from collections.abc import Iterator

import numpy as np

from hpcrl.data.choice import FirstToEnd
from hpcrl.data.choosing import Extend, first_to_end, more_in_flight
from hpcrl.data.slots import Scheduler

ROWS, SLOTS, STEPS = 256, 64, 20
MEDIAN, LONGEST, SEGMENT = 400, 4096, 512
RULE = FirstToEnd(key="whole", in_flight=320, max_age=None, setting="generation.in_flight")


def lengths(seed: int = 0) -> Iterator[int]:
    """Of responses, lognormal with σ 1."""
    numbers = np.random.default_rng(seed)
    while True:
        yield int(np.clip(np.exp(numbers.normal(np.log(MEDIAN), 1.0)), 1, LONGEST))


def turns(limits: list[int]) -> int:
    """How many a worker takes to draw so many tokens of each row."""
    rows = Scheduler([1] * len(limits), SLOTS, 1 << 30, limits=limits)
    count = 0
    while not rows.done:
        rows.admit()
        count += 1
        rows.drew(list(rows.rows(slice(None))))
        rows.leave(())
    return count


def idle_whole() -> float:
    """The share of all slots' turns in which one draws nothing, where a step draws what it trains on."""
    drawn = [next(it) for it in [lengths()] for _ in range(ROWS * STEPS)]
    steps = [drawn[at : at + ROWS] for at in range(0, len(drawn), ROWS)]
    return 1.0 - sum(drawn) / (SLOTS * sum(map(turns, steps)))


def idle_in_flight() -> float:
    """The same of rows in flight, in rounds of a segment each."""
    source, of, left = lengths(), dict[str, int](), dict[str, int]()
    carried: tuple[str, ...] = ()
    whole, used, taken = 0, 0, 0
    for _ in range(STEPS):
        begun = more_in_flight(RULE, ROWS, whole, len(carried) - whole)
        ids, rounds, going = carried, list[tuple[str, ...]](), tuple(row for row in carried if left[row])
        while True:
            new = tuple(f"{len(of) + at}@0" for at in range(begun))
            for row in new:
                of[row] = left[row] = next(source)
            ids, going = (*ids, *new), (*going, *new)
            rounds.append(ids if not rounds else going)
            drawn = [min(SEGMENT, left[row]) for row in going]
            used, taken = used + sum(drawn), taken + (turns(drawn) if drawn else 0)
            for row, tokens in zip(going, drawn, strict=True):
                left[row] -= tokens
            decided = first_to_end(RULE, ROWS, ids, rounds, {row: float(not left[row]) for row in ids})
            if not isinstance(decided, Extend):
                break
            begun, going = decided.rows, decided.going
        carried, whole = decided.carried, decided.whole
    return 1.0 - used / (SLOTS * taken)
