"""Which steps `--step` and `--steps` name: 12, 10-20, 10-, all or newest."""

import re

from hpcrl.errors import ConfigurationError
from hpcrl.inspect.archives import Archives
from hpcrl.inspect.nothing_kept import nothing_kept

NEWEST, ALL = "newest", "all"
_SPAN = re.compile(r"(\d+)(-(\d*))?")


def chosen_steps(archives: Archives, asked: str) -> tuple[list[int], int]:
    """Those with an archive among the steps asked for, and how many others had one that has been deleted.

    Raises ConfigurationError where there is none. A step that was asked for alone is not passed over.
    """
    steps = _with_archives(archives, asked)
    left = [step for step in steps if not archives.is_gone(step)] if len(steps) > 1 else steps
    if not left:
        there = in_spans(_still_there(archives))
        raise ConfigurationError(
            [f"--step {asked}: the archives of all of these steps, {in_spans(steps)}, are gone."],
            f"There are {there}." if there else "",
        )
    return left, len(steps) - len(left)


def _with_archives(archives: Archives, asked: str) -> list[int]:
    newest = next(archives.newest_first(), None)
    if newest is None:
        raise nothing_kept(archives.run)
    if asked == NEWEST:
        return [newest]
    if span := _span(asked, newest):
        lines = archives.between(*span)
        if found := [step for step, line in lines.items() if line.samples is not None]:
            return found
    if asked == ALL:
        return archives.steps
    return among(_still_there(archives) or archives.steps, asked, "--step", "has kept no sample")


def _still_there(archives: Archives) -> list[int]:
    return [step for step in archives.steps if not archives.is_gone(step)]


def among(steps: list[int], asked: str, option: str, lacks: str) -> list[int]:
    """Those of some steps that an option asks for: 12, 10-20, 10- or all. `lacks` is what others do.

    Raises ConfigurationError, naming those that there are, for what is no step or none of these.
    """
    if asked == ALL:
        return steps
    span = _span(asked, steps[-1])
    if span is None:
        raise ConfigurationError([f"{option} {asked} is no step."], f"Give {in_spans(steps)}, a span of them, or all.")
    wanted = [step for step in steps if span[0] <= step <= span[1]]
    if not wanted:
        raise ConfigurationError([f"{option} {asked} {lacks}."], f"There are {in_spans(steps)}.")
    return wanted


def _span(asked: str, newest: int) -> tuple[int, int] | None:
    """The first and the last step of 12, 10-20 or 10-; None of anything else."""
    found = _SPAN.fullmatch(asked)
    if found is None:
        return None
    first = int(found[1])
    return first, first if found[2] is None else int(found[3] or newest)


def in_spans(steps: list[int]) -> str:
    """`1-12, 15`."""
    spans: list[list[int]] = []
    for step in steps:
        if spans and step == spans[-1][1] + 1:
            spans[-1][1] = step
        else:
            spans.append([step, step])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
