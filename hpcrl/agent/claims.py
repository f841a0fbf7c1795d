"""Exclusive claims on a node's GPUs: a lock file per device on node-local memory, held for an agent's life.

The kernel lets a claim go when its process ends, however it ends. Claims are between the jobs of one user: what other
users may use is Slurm's to say. Where a site gives each job a /dev/shm of its own, jobs do not see each other's claims.
"""

import json
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from hpcrl.errors import ConfigurationError, InternalError

NODE_LOCAL = (Path("/dev/shm"), Path("/tmp"))
"""Where claims may be. Not $TMPDIR, of which every job may have its own."""
LEAVE_S = 10.0
"""How long an agent that is ending may take."""
POLL_S = 0.2


@dataclass(frozen=True)
class Holder:
    """The agent that holds a claim, as it stands in the lock file."""

    run: str
    submission: str
    node: int
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid}, the agent of node {self.node} of the run {self.run}"


class Claims:
    """What this process holds. Made after its last fork: a child would hold its parent's claims too."""

    def __init__(self, holder: Holder, ending_s: float, parents: Sequence[Path] = NODE_LOCAL) -> None:
        """`ending_s` is how long an agent of the same run that lost its master may still live."""
        self._holder = holder
        self._ending_s = ending_s
        self._parents = parents
        self._locks: list[FileLock] = []

    def take(self, uuids: Sequence[str], give_up: Callable[[], bool] = lambda: False) -> None:
        """Claim devices, waiting a little for agents that are ending; returns early once `give_up`.

        Raises:
            ConfigurationError: another process holds one of them; nothing is held then.
        """
        if not uuids:
            return
        folder = claims_folder(self._parents)
        try:
            for uuid in uuids:
                self._take(folder, uuid, give_up)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        while self._locks:
            self._locks.pop().release()

    def _take(self, folder: Path, uuid: str, give_up: Callable[[], bool]) -> None:
        path = folder / (re.sub(r"[^A-Za-z0-9-]", "_", uuid) + ".lock")
        lock = FileLock(path, timeout=0, mode=0o600)
        began = time.monotonic()
        while not give_up():
            try:
                lock.acquire()
            except Timeout:
                other = read_holder(path)
                if time.monotonic() - began >= self._patience_s(other):
                    raise _held(uuid, other) from None
                time.sleep(POLL_S)
                continue
            self._locks.append(lock)
            path.write_text(json.dumps(asdict(self._holder)))
            return

    def _patience_s(self, other: Holder | None) -> float:
        """Another node's agent of this very submission does not go away; an older one of this run does."""
        if other is None or other.run != self._holder.run:
            return LEAVE_S
        if other.submission == self._holder.submission and other.node != self._holder.node:
            return 0.0
        return self._ending_s + LEAVE_S


def read_holder(path: Path) -> Holder | None:
    """Who wrote itself into a lock file; None where that cannot be read (it may be about to)."""
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def claims_folder(parents: Sequence[Path] = NODE_LOCAL) -> Path:
    """This user's folder of claims, made where it is missing; a folder that somebody else put there is not used.

    Raises:
        InternalError: there is no place for it.
    """
    refused = []
    for parent in parents:
        folder = parent / f"hpcrl-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            refused.append(str(error))
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            folder.chmod(0o700)
            return folder
        refused.append(f"{folder} is not a folder of user {os.getuid()}")
    raise InternalError(
        f"no place for claims on GPUs: {'; '.join(refused)}.", "Remove it, or set cluster.device to cpu."
    )


def _held(uuid: str, other: Holder | None) -> ConfigurationError:
    return ConfigurationError(
        [
            f"GPU {uuid} is held by {other or 'a process that did not say who it is'}, but a worker needs one of "
            "its own."
        ],
        "End that run with `hpcrl stop`, or give each job its own GPUs (CUDA_VISIBLE_DEVICES; on Slurm, "
        "cluster.slurm.gpus).",
    )
