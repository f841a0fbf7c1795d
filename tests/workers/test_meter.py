"""What a meter adds up, and what a process's memory says of itself."""

from mmap import mmap
from pathlib import Path

import pytest

from hpcrl.figures import Figures, packed, unpacked
from hpcrl.whereabouts import Doing
from hpcrl.wire.envelope import Envelope, encode
from hpcrl.wire.messages import Beat
from hpcrl.workers.meter import InUse, Meter, ProcessMemory

MIB = 2**20


class Device:
    """A clock whose moments are numbers, and that is read late."""

    def __init__(self) -> None:
        self.moment, self.read = 0, 0

    def now(self) -> int:
        self.moment += 1
        return self.moment

    def seconds(self, begin: int, end: int) -> float:
        self.read += 1
        return float(end - begin)


def test_seconds_and_counts_are_added_up_and_forgotten_when_the_next_part_begins() -> None:
    meter = Meter()
    for _ in range(2):
        meter.begin()
        with meter.timing("forward"), meter.timing("collective"):
            pass
        with meter.timing("forward"):
            pass
        meter.count("micro_batches", 2)
        meter.rows(10, 6, 5.0)
        meter.rows(20, 4, 7.0)
        figures = meter.taken(0.25, 1.5)
    assert figures.seconds.forward >= figures.seconds.collective > 0 == figures.seconds.backward
    assert (figures.seconds.gather, figures.seconds.execute) == (0.25, 1.5)
    assert (figures.tokens, figures.longest, figures.micro_batches, figures.flops) == (30, 6, 2, 12.0)
    assert 0 < figures.held <= figures.peak


@pytest.mark.parametrize("apart", [1, 8])
def test_a_beat_from_within_a_collective_of_many_ranks_is_no_longer_than_one_of_few(apart: int) -> None:
    sizes = []
    for ranks in (2, 16, 64):
        meter = Meter()
        with meter.together(tuple(range(0, ranks * apart, apart)), "all-to-all", 7):
            beat = Beat(Doing("execute", "running", collective=meter.collective))
        sizes.append(len(encode(Envelope("worker-0", 1, beat))))
    assert sizes == sizes[:1] * 3


def test_a_device_is_asked_for_its_times_once_all_is_ordered_but_for_what_the_host_waits_in() -> None:
    meter, device = Meter(), Device()
    meter.clock = device
    meter.begin()
    with meter.timing("backward"), meter.timing("collective"):
        pass
    with meter.timing("backward"):
        pass
    assert device.read == 0
    assert meter.taken(0.0, 0.0).seconds.backward == 2.0 and device.moment == 4


def test_the_peak_of_a_process_is_that_since_it_was_last_begun() -> None:
    memory = ProcessMemory()
    memory.begin()
    with mmap(-1, 64 * MIB) as large:
        large.write(b"x" * (64 * MIB))
        with_it = memory.in_use()
    memory.begin()
    after = memory.in_use()
    assert with_it.peak - after.peak > 48 * MIB and after.held <= after.peak


def test_memory_of_which_the_kernel_says_nothing_is_nothing(tmp_path: Path) -> None:
    memory = ProcessMemory(tmp_path / "status", tmp_path / "no folder" / "clear_refs")
    memory.begin()
    assert memory.in_use() == InUse(0, 0)
    (tmp_path / "status").write_text("Name:\thpcrl\nVmRSS:\t   12 kB\n")
    assert memory.in_use() == InUse(0, 12 * 1024)


def test_nothing_was_measured_of_what_does_nothing() -> None:
    meter = Meter()
    meter.begin()
    told = unpacked(packed(meter.taken(0.0, 0.0)))
    assert told == Figures(peak=(now := meter.memory.in_use()).peak, held=now.held)
