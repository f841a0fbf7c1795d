"""Operating-system processes: their signals as a flag, groups, death with the parent or of memory, wait statuses, work.

A signal handler remembers which signal came first and wakes a poller; nothing is done inside a handler.
"""

import ctypes
import faulthandler
import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
CGROUPS, SHARED = Path("/sys/fs/cgroup"), Path("/dev/shm")
DRAINING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
OOM_COUNTER = "memory.oom_control"
TICKS_OF_WORK = os.sysconf("SC_CLK_TCK") // 5
"""A fifth of a second of a CPU."""
FAULTS_OF_WORK = 64
"""Pages that had to be read from disk."""
BYTES_OF_WORK = 4 << 20
_READ_BYTES = re.compile(r"^(?:rchar|read_bytes): (\d+)$", re.MULTILINE)
_JOB = re.compile(r"(/.*?/job_\d+)(?:/|$)")
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when its parent ends. Exits at once if the parent is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def describe_status(status: int) -> str:
    """What a `waitpid` status means: `exit code 3` or `killed by SIGKILL`."""
    if name := signal_of(status):
        return f"killed by {name}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def signal_of(status: int) -> str:
    """The name of the signal that a `waitpid` status means; empty of an exit."""
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""


def tell_faults() -> None:
    """Have this process, and those that it forks, write the stacks of all threads to standard error when a signal such
    as SIGSEGV ends them. In a run, standard error is one of its logs."""
    faulthandler.enable(2)


def keep_freed_memory() -> None:
    """Have the C library keep what is freed, blocks above 1 GiB apart, for whoever allocates next.

    A step's arrays are as large as those of the step before: given back and taken again, each of their pages would be
    faulted in anew. Without effect where the C library is not glibc.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(M_TRIM_THRESHOLD, -1)


def kill_group(group: int) -> None:
    """SIGKILL everything in a process group; nothing if it is gone."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def lead_group(pid: int) -> None:
    """Make a child the leader of its own process group; called on both sides of the fork, so that neither is late."""
    try:
        os.setpgid(pid, pid)
    except (ProcessLookupError, PermissionError):
        return


def limit_threads(threads: int) -> None:
    """Say how many threads numerical libraries may use; before they are imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


def allow_open_files() -> None:
    """Let this process, and those that it starts, have as many files and sockets open as the system lets them: a master
    has a connection to each worker."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def oom_kills(job_only: bool = False, cgroups: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> int:
    """How often the kernel has killed in this process's Slurm job for want of memory; 0 where nobody counts.

    (Slurm's own word for it comes too late for a script.) Outside a job it is the process's own group that counts,
    which others may share, unless `job_only`.
    """
    try:
        folders = list(memory_groups(cgroups.read_text(), root, job_only))
    except OSError:
        return 0
    return sum(_count(path) for folder in folders for path in _counters(folder))


def out_of_memory(before: int) -> str:
    """What to add of a process that SIGKILL has ended, if the kernel has killed since `oom_kills` was `before`."""
    if oom_kills() <= before:
        return ""
    return (
        ", out of memory: the kernel has killed in this job for want of it. Have its processes use less; on Slurm, "
        "cluster.slurm.memory gives them more"
    )


def memory_groups(cgroups: str, root: Path, job_only: bool) -> Iterator[Path]:
    """The job's own group: `0::/…/job_7/step_batch/…` with version 2, `9:memory:/slurm/uid_0/job_7/…` with 1. Where
    version 1 has the memory, version 2's line tells nothing of it."""
    lines = [line.partition(":")[2].partition(":") for line in cgroups.splitlines()]
    groups = [(controllers, path) for controllers, _, path in lines]
    of_version_1 = [group for group in groups if "memory" in group[0].split(",")]
    for controllers, path in of_version_1 or [group for group in groups if not group[0]]:
        job = _JOB.match(path)
        if job or not job_only:
            yield root / controllers / (job[1] if job else path).lstrip("/")


def _counters(folder: Path) -> list[Path]:
    """Version 2 adds up what is below; version 1 counts each group apart, and a job's steps vanish while we look."""
    whole = folder / "memory.events"
    if whole.is_file():
        return [whole]
    if not folder.name.startswith("job_"):
        return [folder / OOM_COUNTER]
    return [Path(where, OOM_COUNTER) for where, _, names in os.walk(folder) if OOM_COUNTER in names]


def _count(path: Path) -> int:
    try:
        return sum(int(number) for number in _OOM_KILLS.findall(path.read_text()))
    except OSError:
        return 0


def work_done(pid: int) -> int:
    """A number that changes while a process, or one below it, computes or reads, and stays while all of them wait.

    It counts main threads alone, as others talk while the work stands still, and in steps so large that looking again
    and again for what one waits for takes hours to make one. 0 where the kernel does not say.
    """
    return _work_of(pid) + sum(map(work_done, children_of(pid)))


def children_of(pid: int) -> list[int]:
    """None where it has ended, or the kernel does not say."""
    threads: list[str] = []
    with suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
    return [int(child) for thread in threads for child in _read(Path(f"/proc/{pid}/task/{thread}/children")).split()]


def shared_memory_of(pid: int, since: float) -> set[Path]:
    """This user's files in shared memory, made since then, that a process or one below it has mapped: the kernel keeps
    them when these are killed."""
    mapped, found = mapped_shared(pid), set()
    for path in SHARED.glob("*"):
        with suppress(OSError):
            known = path.lstat()
            if known.st_ino in mapped and known.st_uid == os.getuid() and known.st_ctime >= since:
                found.add(path)
    return found


def mapped_shared(pid: int) -> set[int]:
    """The inodes of what a process, or one below it, has mapped of shared memory; its names may be others by now."""
    maps = [line.split(maxsplit=5) for line in _read(Path(f"/proc/{pid}/maps")).splitlines()]
    own = {int(fields[4]) for fields in maps if len(fields) == 6 and fields[5].startswith(f"{SHARED}/")}
    return own.union(*map(mapped_shared, children_of(pid)))


def _work_of(pid: int) -> int:
    main_thread = Path(f"/proc/{pid}/task/{pid}")
    numbers = [int(field) for field in _read(main_thread / "stat").rpartition(")")[2].split()[1:]]
    faults, ticks = sum(numbers[8:10]), sum(numbers[10:14])
    read = sum(map(int, _READ_BYTES.findall(_read(main_thread / "io"))))
    return ticks // TICKS_OF_WORK + faults // FAULTS_OF_WORK + read // BYTES_OF_WORK


def _read(path: Path) -> str:
    """Empty where there is no such file, or no more."""
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def redirect_output(out: Path, err: Path) -> None:
    """Append this process's standard output and error to files (0600)."""
    for path, descriptor in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


class Signals:
    """Catches the signals that ask a process to go, from construction to `close`. Made in the main thread."""

    def __init__(self) -> None:
        self.caught = ""
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._remember) for number in DRAINING}
        self._before_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Readable once a signal came, until `quiet`."""
        return self._reader

    def quiet(self) -> None:
        """The waiting poller has seen it."""
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.caught = self.caught or signal.Signals(number).name

    def close(self) -> None:
        signal.set_wakeup_fd(self._before_wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)


def waited_s() -> float:
    """Seconds for which this thread could have run and no processor was free; 0 where the kernel does not say it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
