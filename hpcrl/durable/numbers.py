"""What is ordered in a run directory has a number, made by exclusive creation: clocks of different hosts may differ."""

from collections.abc import Callable, Iterable

from hpcrl.durable.exclusive import AlreadyPublishedError


def publish_next(names: Iterable[str], publish: Callable[[int], object]) -> int:
    """Publish under the next number that is free; of several processes that try, each gets one of its own.

    `names` are those that are there; their numbers stand before the first dot.
    """
    stems = (name.partition(".")[0] for name in names)
    number = max((int(stem) for stem in stems if stem.isdecimal()), default=-1) + 1
    while True:
        try:
            publish(number)
            return number
        except AlreadyPublishedError:
            number += 1
