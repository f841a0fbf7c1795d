"""Where a profile measures a kind of call, and how often: until what is between points follows from them, and each is
known; or until the time for it is over. All workers decide alike, by times that they have in common."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np

from hpcrl.algos.profile_subject import Subject, Timer, usual
from hpcrl.placement.profile_points import CLOSE, Timed, explored

FIRST = 3
"""Rounds in which a point is measured when it is met."""
MOST = 25
"""Rounds, at most."""
FEWEST = 5
"""Rounds after which a point may be known."""
KNOWN = 0.01
"""A point is known once the mean of its rounds is, within this share of it."""
EXPLORING = 0.5
"""Of the time, at most, for finding points; what is left goes to measuring there again."""
Place = tuple[int, int]
Point = Callable[[Subject, int, int], dict[str, float]]


class _Rounds:
    """What was measured at each place, of all subjects, again and again."""

    def __init__(self, subjects: Sequence[Subject], point: Point, explores: Callable[[], bool]) -> None:
        """`explores`: whether there is time for more than one round of a place that is new."""
        self._subjects = subjects
        self._point = point
        self._explores = explores
        self._made: dict[Place, list[list[dict[str, float]]]] = {}
        self._first: dict[Place, float] = {}

    def measure(self, place: Place) -> None:
        again = [self._point(subject, *place) for subject in self._subjects]
        self._made.setdefault(place, []).append(again)

    def first(self, place: Place) -> float:
        """What all subjects took together when it was met, in seconds: each time the same."""
        if place not in self._first:
            self.measure(place)
            while len(self._made[place]) < FIRST and self._explores():
                self.measure(place)
            self._first[place] = float(self._taken(place).sum(axis=1).mean())
        return self._first[place]

    def doubt(self) -> float:
        """By which share of it what was measured of a place is unknown, usually."""
        found = [_doubts(self._taken(place)).max() for place, rounds in self._made.items() if len(rounds) > 1]
        return float(median(found)) if found else 0.0

    def is_known(self, place: Place) -> bool:
        taken = self._taken(place)
        return len(taken) >= MOST or (len(taken) >= FEWEST and bool(_doubts(taken).max() <= KNOWN))

    def usual(self, place: Place) -> Iterator[tuple[str, list[float]]]:
        """What was measured, and what is usual of each subject."""
        rounds = self._made[place]
        for what in rounds[0][0]:
            of_subjects = zip(*([of[what] for of in subjects] for subjects in rounds), strict=True)
            yield what, [usual([(seconds,) for seconds in of])[0] for of in of_subjects]

    def _taken(self, place: Place) -> np.ndarray:
        """[rounds, subjects]"""
        return np.array([[sum(of.values()) for of in subjects] for subjects in self._made[place]])


def _doubts(taken: np.ndarray) -> np.ndarray:
    """[subjects]: standard errors of means, as shares of them."""
    doubts: np.ndarray = taken.std(axis=0, ddof=1) / len(taken) ** 0.5 / np.maximum(1e-9, np.abs(taken.mean(axis=0)))
    return doubts


def points_of(
    subjects: Sequence[Subject],
    timer: Timer,
    budget_s: float,
    point: Point,
    x: tuple[int, int],
    y: tuple[int, int],
    *,
    passes: bool = False,
    unit: int = 0,
) -> list[Timed]:
    """Of models of few blocks and of many, on a grid that all else follows from; `passes`: also with texts of which the
    last token alone predicts something, and what a call does once."""
    begun = timer.spent

    def more(share: float = 1.0) -> bool:
        return timer.spent < begun + share * budget_s

    def explores() -> bool:
        return more(EXPLORING)

    rounds = _Rounds(subjects, point, explores)

    def close() -> float:
        return max(CLOSE, 2 * rounds.doubt())  # what differs by chance alone calls for no further points

    grid = explored(lambda *at: rounds.first(at), x, y, unit or y[-1], explores, close)
    places: list[Place] = [(at, length) for at in grid.xs for length in grid.ys]
    places += [*((at, 0) for at in grid.xs), (0, 0)] if passes else []
    for place in places:
        rounds.first(place)
    for place in places * MOST:  # again and again, later: what disturbed one time is gone another
        if more() and not rounds.is_known(place):
            rounds.measure(place)
    return [Timed(what, *place, *taken) for place in places for what, taken in rounds.usual(place)]
