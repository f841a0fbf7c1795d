"""What Slurm's accounting said of a job when its process had ended: a file beside the submission, for each start of it.

Written by the job's exit hook. There is none where sacct is absent or silent, and nothing is decided by one.
"""

import contextlib

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


def keep_account(run: RunDirectory, nonce: str, name: str, lines: list[JobAccount]) -> None:
    """Of the start of a job that this name tells of: `master.123.0`. The first that is kept stays."""
    folder = run.files.directory(run.submitit_folder(nonce) / "accounting")
    with contextlib.suppress(AlreadyPublishedError):
        run.files.publish(folder / f"{name}.json", msgspec.json.encode(lines) + b"\n", "account")


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
