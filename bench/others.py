"""How much of the machine other programs had while something was measured: times are worth little where it is much."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Others:
    """Processors, on average, that neither this process nor those that it has begun had."""

    processors = 0.0


@contextmanager
def watched() -> Iterator[Others]:
    """Around what is measured."""
    found, begun, before = Others(), time.perf_counter(), _seconds()
    yield found
    found.processors = max(0.0, (_seconds() - before) / (time.perf_counter() - begun))


def _seconds() -> float:
    """CPU seconds of all that is not ours since the machine began."""
    user, nice, system, _, _, irq, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft - _own_ticks()) / TICKS


def _own_ticks() -> int:
    processes = dict(_processes())
    found, left = 0, [os.getpid()]
    while left:
        of = left.pop()
        found += processes[of][1] if of in processes else 0
        left += [child for child, (parent, _) in processes.items() if parent == of]
    return found


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Each one's parent, and its ticks with those of its children that have ended."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            yield int(folder.name), (int(fields[1]), sum(map(int, fields[11:15])))
