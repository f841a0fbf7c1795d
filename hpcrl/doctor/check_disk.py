"""What a filesystem can do, from one machine and between two, and what follows where hpcrl relies on more."""

import statistics
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from hpcrl.doctor.findings import CLUSTER, SKEW_S, Finding, Severity, in_short
from hpcrl.doctor.measurements import DiskMeasurements, PairMeasurements, Race, Replaced

GIB = 2**30
_SEEN_AS = MappingProxyType(
    {"list": "a new file in a listing", "open": "a new file by its name", "append": "what was appended to a file"}
)
_RACES = MappingProxyType({"link": "link", "create": "O_EXCL", "mkdir": "mkdir"})


def check_disk(area: str, disk: DiskMeasurements) -> Iterator[Finding]:
    volatile = disk.filesystem in ("tmpfs", "ramfs")
    yield Finding(
        area,
        "filesystem",
        f"{disk.filesystem} at {disk.path}",
        Severity.WARNING if volatile else Severity.OK,
        "gone after a reboot, and it is memory: set run_root to a disk" if volatile else "",
    )
    yield _free(area, disk)
    yield from _operations(area, disk)
    yield check_fsync(area, disk)
    if disk.clock_ahead_s is not None and abs(disk.clock_ahead_s) > SKEW_S:
        value = f"{disk.clock_ahead_s:+.1f} s against this machine"
        follows = "nothing of hpcrl's depends on times of files; other tools on this disk may"
        yield Finding(area, "the file server's clock", value, Severity.NOTE, follows)


def _free(area: str, disk: DiskMeasurements) -> Finding:
    gib = disk.free_bytes / GIB
    follows = "free some, set run_root elsewhere, or lower control.keep_checkpoints" if gib < 20 else ""
    severity = Severity.PROBLEM if gib < 1 else Severity.WARNING if gib < 20 else Severity.OK
    return Finding(area, "free space", f"{gib:.1f} GiB", severity, follows)


def _operations(area: str, disk: DiskMeasurements) -> Iterator[Finding]:
    needed = "set run_root to a filesystem that can do it: two masters could both believe that a run is theirs"
    works = {
        "link": (disk.link_exclusive, needed),
        "O_EXCL": (disk.create_exclusive, needed),
        "mkdir": (disk.mkdir_exclusive, needed),
        "rename": (disk.rename_replaces, "set run_root to a filesystem that can do it: files could appear in parts"),
        "chmod": (disk.modes_kept, "others may read the run's key: set run_root to a filesystem that keeps modes"),
        "fsync": ("fsync" not in disk.failed, "what counts as done may be lost in a crash: set run_root elsewhere"),
    }
    broken = [name for name, (fine, _) in works.items() if not fine]
    fine = ", ".join(name for name in works if name not in broken)
    if fine:
        yield Finding(area, "operations", f"{fine} as they should be", Severity.OK)
    for name in broken:
        said = disk.failed.get(name, "not exclusive" if name in ("link", "O_EXCL", "mkdir") else "without effect")
        yield Finding(area, name, said, Severity.WARNING if name == "chmod" else Severity.PROBLEM, works[name][1])


def check_fsync(area: str, disk: DiskMeasurements) -> Finding:
    if not disk.fsync_s:
        return Finding(area, "a durable file", "not measured", Severity.NOTE)
    median, longest = statistics.median(disk.fsync_s), max(disk.fsync_s)
    value = f"{in_short(median)}, at worst {in_short(longest)}"
    if median < 0.05:
        return Finding(area, "a durable file", value, Severity.OK)
    follows = (
        "each finished call waits for two or three of these: larger parts (data.batch_size, fewer workers) make fewer "
        "calls; or set run_root to a quicker disk"
    )
    return Finding(area, "a durable file", value, Severity.NOTE if median < 0.5 else Severity.WARNING, follows)


def check_shared(pairs: Sequence[PairMeasurements]) -> Iterator[Finding]:
    """What one node does, as another sees it."""
    yield from _visibility(pairs)
    yield from _races(pairs)
    yield from _replacing([pair.replaced for pair in pairs if pair.replaced is not None])


def _visibility(pairs: Sequence[PairMeasurements]) -> Iterator[Finding]:
    for how, what in _SEEN_AS.items():
        rounds = [seconds for pair in pairs for seen in pair.seen if seen.how == how for seconds in seen.seconds]
        if not rounds:
            continue
        seconds = [each for each in rounds if each is not None]
        if len(seconds) < len(rounds):
            yield _unseen(how, what, len(rounds) - len(seconds), len(rounds))
            continue
        longest = max(seconds)
        value = f"after {in_short(statistics.median(seconds))}, at worst {in_short(longest)}"
        yield Finding("between nodes", what, value, *_of_latency(how, longest))


def _unseen(how: str, what: str, lost: int, rounds: int) -> Finding:
    value = f"in {lost} of {rounds} tries not seen within the deadline"
    if how == "list":
        follows = "hpcrl finds its peers by listing: set run_root to another filesystem, or have actimeo lowered"
        return Finding("between nodes", what, value, Severity.PROBLEM, follows)
    if how == "open":
        follows = "hpcrl lists before it opens; your own scripts should too"
        return Finding("between nodes", what, value, Severity.NOTE, follows)
    follows = "`hpcrl status` and `hpcrl logs` trail on other nodes; a run itself appends and reads on one node"
    return Finding("between nodes", what, value, Severity.WARNING, follows)


def _of_latency(how: str, longest_s: float) -> tuple[Severity, str]:
    if longest_s < 1:
        return Severity.OK, ""
    if how == "append":
        return Severity.NOTE, f"`hpcrl status` and `hpcrl logs` show what was up to {longest_s:.0f} s ago"
    if how == "open":
        return Severity.NOTE, "hpcrl lists before it opens; your own scripts should too"
    needed_s = 60 + 10 * longest_s
    if needed_s > CLUSTER.start_timeout_s:
        return Severity.WARNING, f"set cluster.start_timeout_s to at least {needed_s:.0f}: an attempt begins by files"
    follows = f"an attempt begins by files: cluster.start_timeout_s = {CLUSTER.start_timeout_s:.0f} is enough, "
    return Severity.NOTE, follows + f"keep it above {needed_s:.0f}"


def _races(pairs: Sequence[PairMeasurements]) -> Iterator[Finding]:
    for how, what in _RACES.items():
        races = [race for pair in pairs for race in pair.races if race.how == how]
        if races:
            yield _raced(f"{what} from two nodes at once", races)


def _raced(what: str, races: Sequence[Race]) -> Finding:
    one, none, both = (sum(getattr(race, name) for race in races) for name in ("one", "none", "both"))
    failed = next((race.failed for race in races if race.failed), "")
    if failed:
        follows = "set run_root to a filesystem that can do it"
        return Finding("between nodes", what, failed, Severity.PROBLEM, follows)
    if both or none:
        value = f"of {one + both + none} tries two winners in {both}, none in {none}"
        follows = "two masters could both believe that a run is theirs: set run_root to another filesystem"
        return Finding("between nodes", what, value, Severity.PROBLEM, follows)
    return Finding("between nodes", what, f"one winner in each of {one} tries", Severity.OK)


def _replacing(found: Sequence[Replaced]) -> Iterator[Finding]:
    if not found:
        return
    reads, stale, missing, torn, lost = (
        sum(getattr(each, name) for each in found) for name in ("reads", "stale", "missing", "torn", "not_recovered")
    )
    what = "reading what is being replaced"
    value = f"{reads} reads: {stale} stale handles, {missing} missing, {torn} torn"
    if torn:
        follows = "a rename shows parts of files here: set run_root to another filesystem"
        yield Finding("between nodes", what, value, Severity.PROBLEM, follows)
    elif lost:
        value += f"; {lost} not readable after five further tries"
        follows = "hpcrl never replaces a file that is read, but its retries would not do: prefer another filesystem"
        yield Finding("between nodes", what, value, Severity.WARNING, follows)
    elif stale or missing:
        follows = "a further try helped each time, as hpcrl makes them; it never replaces a file that is read"
        yield Finding("between nodes", what, value, Severity.NOTE, follows)
    else:
        yield Finding("between nodes", what, value, Severity.OK)
