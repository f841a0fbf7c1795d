"""What the statistics of parts are together: totals over weights, whatever the parts. Pure."""

import math
from collections.abc import Iterable, Sequence

from hpcrl.durable.journal import Done, Event, Stats, Trained

MAX_EXPONENT = 700.0
"""e to more than this is no float64."""

GEOMETRIC = ("perplexity",)
"""Statistics that are reported as sums of logarithms: they add up, and their mean is a geometric one."""


def means_of(parts: Sequence[Stats]) -> dict[str, float]:
    """Each statistic of all parts together. One to which nothing counted has no mean and is left out."""
    found = {}
    for name in dict.fromkeys(name for stats in parts for name in stats):
        total, weight = together(stats[name] for stats in parts if name in stats)
        if weight:
            found[name] = math.exp(min(total / weight, MAX_EXPONENT)) if name in GEOMETRIC else total / weight
    return found


def together(parts: Iterable[Sequence[float]]) -> tuple[float, float]:
    """(total, weight) of a statistic of several parts, each (total, weight) or (total, weight, rest of the total).

    The totals' sum is rounded once, so that it does not depend on the order of the parts; where they have their rests,
    nor on how many parts there are.
    """
    known = [*parts]
    totals = [number for total, _, *rest in known for number in (total, *rest)]
    return rounded_once(totals), sum(weight for _, weight, *_ in known)


def rounded_once(numbers: Sequence[float]) -> float:
    """Their sum; of numbers that have none, infinite or not a number."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(numbers)


def over_all(events: Iterable[Event]) -> dict[str, float]:
    """`call/statistic` → its mean over all steps of a run that trains nothing; none of one that does.

    Of a part that was made again the newest line counts.
    """
    parts: dict[tuple[str, int, int], Stats] = {}
    for event in events:
        if isinstance(event, Trained):
            return {}
        if isinstance(event, Done):
            parts[event.call, event.step, event.part] = event.stats
    by_call: dict[str, list[Stats]] = {}
    for (call, _, _), stats in sorted(parts.items()):
        by_call.setdefault(call, []).append(stats)
    return {f"{call}/{name}": mean for call, stats in by_call.items() for name, mean in means_of(stats).items()}
