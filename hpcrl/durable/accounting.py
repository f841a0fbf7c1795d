"""What Slurm's accounting said of a job when its process had ended: a file beside the submission, for each start of it.

Written by the job's exit hook. There is none where sacct is absent or silent, and nothing is decided by one.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcrl.durable.exclusive import AlreadyPublishedError
from hpcrl.durable.rundir import RunDirectory


class JobAccount(msgspec.Struct, frozen=True):
    """A line of sacct: a job, or a step of one, in one of its starts. Slurm's own words; empty where it has none."""

    job: str
    """`123`, an element `123_4`, or a step `123.0`, `123.batch`."""
    state: str
    """CANCELLED by 1000, OUT_OF_MEMORY, … A job whose hook asks is still RUNNING, or COMPLETING."""
    exit_code: str
    """code:signal."""
    reason: str
    max_rss: str
    """Of the largest task of a step: 1536K. A job itself has none."""
    elapsed: str
    nodes: str
    start: str
    end: str


def account_path(run: RunDirectory, nonce: str, name: str) -> Path:
    """Of the start of a job that this name tells of: `master.123.0`."""
    return run.submitit_folder(nonce) / "accounting" / f"{name}.json"


def keep_account(run: RunDirectory, nonce: str, name: str, lines: list[JobAccount]) -> None:
    """The first that is kept of a start stays."""
    path = account_path(run, nonce, name)
    run.files.directory(path.parent)
    with contextlib.suppress(AlreadyPublishedError):
        run.files.publish(path, msgspec.json.encode(lines) + b"\n", "account")


def state_of(lines: Sequence[JobAccount]) -> str:
    """Slurm's word for the end of the newest start of a job, or of a step of it that ran out of memory; empty of none
    that has ended, as far as accounting knows."""
    started = max((line.start for line in lines if "." not in line.job), default="")
    states = [line.state for line in lines if started and line.start >= started]
    state = next((state for state in states if state.startswith("OUT_OF_ME")), next(iter(states), ""))
    return "" if state in ("RUNNING", "COMPLETING") else state


def read_accounts(run: RunDirectory, nonce: str) -> dict[str, list[JobAccount]]:
    """Name → lines; what is damaged is left out."""
    folder, found = run.submitit_folder(nonce) / "accounting", {}
    for name in run.files.listing(folder) if folder.is_dir() else ():
        if name.endswith(".json"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found[name.removesuffix(".json")] = msgspec.json.decode(
                    (folder / name).read_bytes(), type=list[JobAccount]
                )
    return found
