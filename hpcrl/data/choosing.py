"""Which drawn groups a step trains on: a function of recorded numbers alone, the same live and in recovery.

A group is the samples of a row in an epoch. Knows neither where scores come from nor who makes rows.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from hpcrl.data.choice import Choice, FirstToEnd
from hpcrl.data.order import group_of

MOST_EMPTY_STEPS = 10
"""So many steps in a row may find no group, less one, where they may be smaller: after that nothing is learnt."""

SHOWN_VALUES = 10
"""More distinct scores than these are shown in as many ranges."""

Ids = tuple[str, ...]


@dataclass(frozen=True)
class Extend:
    """Draw so many rows more; samples that are `going` go on."""

    rows: int
    going: Ids = ()


@dataclass(frozen=True)
class Choose:
    """Train on these samples, in data order; the other groups drawn are `dropped`, or `carried` into the next step: the
    first `whole` of them have ended."""

    ids: Ids
    dropped: Ids = ()
    carried: Ids = ()
    whole: int = 0


@dataclass(frozen=True)
class Shortage:
    """Too few groups are left, and no more may be drawn. `scores` are those of all samples drawn."""

    kept: int
    wanted: int
    drawn: int
    scores: tuple[float, ...]
    empty_before: int = 0
    """So many steps right before this one trained on nothing."""

    def describe(self, choice: Choice) -> str:
        return (
            f"after {choice.section}.max_rounds = {choice.max_rounds}, {self.kept} of {self.drawn} groups have samples "
            f"of different scores, and a step trains on {self.wanted}. {self._before()}Scores: {histogram(self.scores)}"
        )

    def _before(self) -> str:
        """What a step that may be smaller has against it."""
        if not self.empty_before:
            return ""
        return f"In the {self.empty_before} steps before it was none either, so that they trained on nothing. "


def choose(
    choice: Choice, wanted: int, rounds: Sequence[Ids], scores: Mapping[str, float], empty_before: int = 0
) -> Extend | Choose | Shortage:
    """What a step does that trains on `wanted` groups and has drawn these rounds, each in data order, after so many
    steps that chose nothing.

    Where groups are too few, as many rows are drawn as it takes at the rate at which groups were kept, at most as many
    as groups are wanted. A step that may be smaller may choose nothing, but not for ever.
    """
    groups = [tuple(of_group) for _, of_group in groupby(chain(*rounds), key=group_of)]
    kept = [group for group in groups if differs([scores[sample] for sample in group])]
    lacking = wanted - len(kept)
    if lacking > 0 and len(rounds) < choice.max_rounds:
        return Extend(min(wanted, math.ceil(lacking * len(groups) / len(kept))) if kept else wanted)
    hopeless = not kept and empty_before + 1 >= MOST_EMPTY_STEPS
    if lacking > 0 and (choice.on_shortage == "fail" or hopeless):
        values = tuple(scores[sample] for group in groups for sample in group)
        return Shortage(len(kept), wanted, len(groups), values, empty_before)
    taken = tuple(chain(*kept[:wanted]))
    trained = frozenset(map(group_of, taken))
    dropped = tuple(name for name in (group_of(group[0]) for group in groups) if name not in trained)
    return Choose(taken, dropped)


def first_to_end(
    choice: FirstToEnd, wanted: int, ids: Ids, rounds: Sequence[Ids], scores: Mapping[str, float]
) -> Extend | Choose:
    """What a step does that trains on `wanted` groups and has drawn `ids`, in so many rounds: each has those that it
    went on with, too. A sample's score is whether it has ended.

    Groups end round by round, and in the order of `ids` within one. Until enough have, whatever has not goes on, and
    others are begun beside it. What happens depends on no clock.
    """
    groups = [tuple(of_group) for _, of_group in groupby(ids, key=group_of)]
    newest = {sample: number for number, drawn in enumerate(rounds) for sample in drawn}
    ended = [group for group in groups if all(scores[sample] for sample in group)]
    if len(ended) < wanted:
        going = tuple(sample for sample in ids if not scores[sample])
        return Extend(max(0, choice.in_flight - (len(groups) - len(ended))), going)
    in_turn = sorted(ended, key=lambda group: max(newest[sample] for sample in group))
    taken = frozenset(in_turn[:wanted])
    rest = frozenset(ended)
    carried = (*in_turn[wanted:], *(group for group in groups if group not in rest))
    chosen = chain(*(group for group in groups if group in taken))
    return Choose(tuple(chosen), carried=tuple(chain(*carried)), whole=len(ended) - wanted)


def more_in_flight(choice: FirstToEnd, wanted: int, whole: int, open_groups: int) -> int:
    """How many rows a step begins that so many groups are carried into: none, where enough of them are whole."""
    return 0 if whole >= wanted else max(0, choice.in_flight - open_groups)


def differs(scores: Sequence[float]) -> bool:
    """Whether there are two that are not equal; a missing one equals all."""
    return len({score for score in scores if not math.isnan(score)}) > 1


def histogram(scores: Sequence[float]) -> str:
    """`0 ×6, 1 ×2, missing ×1`; many values in ranges of equal width."""
    found = [score + 0.0 for score in scores if not math.isnan(score)]  # + 0.0 makes 0 of -0
    counts = Counter(found)
    if len(counts) <= SHOWN_VALUES:
        shown = [f"{score:g} ×{count}" for score, count in sorted(counts.items())]
    else:
        shown = _in_ranges(found)
    missing = len(scores) - len(found)
    return ", ".join([*shown, *([f"missing ×{missing}"] if missing else [])])


def _in_ranges(scores: Sequence[float]) -> list[str]:
    low, high = min(scores), max(scores)
    width = (high - low) / SHOWN_VALUES
    if not math.isfinite(width):
        return [f"{low:g} to {high:g} ×{len(scores)}"]
    counts = Counter(min(int((score - low) / width), SHOWN_VALUES - 1) for score in scores)
    return [f"{low + i * width:.3g} to {low + (i + 1) * width:.3g} ×{count}" for i, count in sorted(counts.items())]
