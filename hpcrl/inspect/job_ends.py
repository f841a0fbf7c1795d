"""What the end of a batch system's job comes from: its exit code, what its exit hook wrote, Slurm's own word."""

from hpcrl.errors import ExitCode
from hpcrl.inspect.trail import JobEnded
from hpcrl.inspect.verdicts import Kind

CODES: dict[int, Kind] = {
    ExitCode.CONFIGURATION: "configuration",
    ExitCode.DATA: "data",
    ExitCode.USER_CODE: "user's code",
    ExitCode.INTERNAL: "internal",
}
OF_JOBS: dict[str, Kind] = {
    "preempted": "preempted",
    "drained": "preempted",
    "time_limit": "time limit",
    "node_failure": "node failure",
    "out_of_memory": "host memory",
    "killed": "node failure",
    "cancelled": "cancelled",
    "left_to_slurm": "cancelled",
    "queued": "waiting for Slurm",
}
"""Causes that the exit hooks of Slurm's jobs write down, of an end that nobody else explains."""
OF_SLURM: tuple[tuple[str, Kind], ...] = (
    ("OUT_OF_ME", "host memory"),
    ("NODE_FAIL", "node failure"),
    ("BOOT_FAIL", "node failure"),
    ("PREEMPTED", "preempted"),
    ("REQUEUED", "preempted"),
    ("TIMEOUT", "time limit"),
    ("DEADLINE", "time limit"),
    ("CANCELLED", "cancelled"),
)
"""Slurm's own words for ends that its jobs' processes cannot tell apart."""
BY_HOOKS = ("REQUEUED", "CANCELLED")
NO_SUCH_COMMAND = (126, 127)
"""What a shell says of a command that it cannot execute."""


def kind_of(job: JobEnded) -> Kind | None:
    """By Slurm's word for it, where there is one, else by what its own process could see."""
    if (by_slurm := kind_of_state(job)) is not None:
        return by_slurm
    if job.exit_code in NO_SUCH_COMMAND:
        return "configuration"
    of_error = CODES.get(job.exit_code or 0) if job.cause in ("user_error", "internal_error") else None
    return of_error or OF_JOBS.get(job.cause)


def kind_of_state(job: JobEnded) -> Kind | None:
    """By Slurm's own word. A job is also cancelled or queued again by its own hook, which then knew another cause."""
    word, kind = next((each for each in OF_SLURM if job.state.startswith(each[0])), ("", None))
    return kind if word not in BY_HOOKS or job.cause == "left_to_slurm" else None
