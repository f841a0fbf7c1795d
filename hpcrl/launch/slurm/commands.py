"""Running Slurm's executables: the only place that does. Each call has a time-out and is counted.

Three ways of failing are kept apart, because they ask for different things: Slurm has refused (SlurmError), Slurm
cannot be asked now (SlurmUnavailableError), and nobody knows whether a job was queued (AmbiguousError).
"""

import contextlib
import os
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Literal

from hpcrl.durable.accounting import JobAccount
from hpcrl.errors import HpcrlError
from hpcrl.launch.launcher import UnreachableError
from hpcrl.launch.slurm.jobs import (
    ACCOUNT_FIELDS,
    SACCT_FIELDS,
    SEPARATOR,
    SQUEUE_FORMAT,
    Incarnation,
    JobId,
    Queued,
    parse_account,
    parse_end_times,
    parse_sacct,
    parse_squeue,
)
from hpcrl.launch.slurm.site import NODE_FORMAT, NodeKind, SlurmSite, parse_nodes, parse_pairs, read_site

TIMEOUT_S = 60.0
"""Slurm's own commands give up on a silent controller after MessageTimeout and some retries."""

_KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT"})
"""Variables that say which Slurm is meant, and not what a surrounding job is."""
_OF_SLURM = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_")
_OF_A_JOB = frozenset({"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"})

_SILENT = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "connection reset",
    "communication connection failure",
    "message send failure",
    "message receive failure",
    "communication shutdown failure",
    "zero bytes were transmitted",
    "unexpected message received",
    "transport endpoint is not connected",
    "configuration source",
    "problem talking to the database",
    "unable to connect to database",
)
"""What Slurm says, in lower case, when a question or its answer got lost."""
_BUSY = (
    "rate limit exceeded",
    "backup controller in standby mode",
    "slurm temporarily unable to accept job",
    "job can not be altered now",
    "resource temporarily unavailable",
)
"""What Slurm says when it has done nothing, and may do it later."""
_OVER = ("invalid job id specified", "already completing or completed")
"""What it says of a job that has ended."""


class SlurmError(HpcrlError):
    """Slurm has refused."""

    def __init__(self, command: Sequence[str], status: int | None, stderr: str, what: str = "") -> None:
        self.command, self.status, self.stderr = tuple(command), status, stderr.strip()
        said = self.stderr or "(it has said nothing)"
        super().__init__(f"{what or f'{command[0]} failed with exit status {status}'}: {said}\n{shlex.join(command)}")


class SlurmUnavailableError(SlurmError, UnreachableError):
    """Slurm cannot be asked now; `missing` names what does not answer. Says nothing about any job."""

    def __init__(self, command: Sequence[str], status: int | None, stderr: str, missing: str) -> None:
        self.missing = missing
        super().__init__(command, status, stderr, f"{missing} does not answer")


class AmbiguousError(SlurmError, UnreachableError):
    """sbatch has failed in a way that leaves open whether a job was queued. Look for it before sending it again."""

    def __init__(self, command: Sequence[str], status: int | None, stderr: str) -> None:
        super().__init__(command, status, stderr, "sbatch has not told whether the job was queued")


class Requeued(Enum):
    """What `scontrol requeue` came to."""

    DONE = "done"
    ALREADY = "already"
    """The job is pending: Slurm has queued it itself."""
    REFUSED = "refused"
    """The site or the job forbids it."""


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what a surrounding job has set, which would bend sbatch's options and the formats of the others.

    SBATCH_* stays: these are the user's own defaults.
    """
    in_a_job = "SLURM_JOB_ID" in environment
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not (name.startswith(_OF_SLURM) or (in_a_job and name in _OF_A_JOB))
    }


class Slurm:
    """The commands. `calls` counts them by name. Retries nothing and remembers nothing else."""

    def __init__(self, environment: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._environment = clean_environment(os.environ if environment is None else environment)
        self._timeout_s = timeout_s
        self.calls: Counter[str] = Counter()

    @property
    def rpcs(self) -> int:
        """How often a daemon of Slurm was asked."""
        return self.calls.total()

    def sbatch(self, script: Path, arguments: Sequence[str] = ()) -> str:
        """Send a script; returns the id of the job or array. Raises AmbiguousError where it may be queued."""
        command = ["sbatch", "--parsable", *arguments, str(script)]
        status, stdout, stderr = self._run(command)
        # A site's job_submit plugin may print lines of its own.
        ids = [line.strip().partition(";")[0] for line in stdout.splitlines()]
        found = [each for each in ids if each.isdecimal()]
        if status == 0 and found:
            return found[-1]
        if _says(stderr, _BUSY) and not _says(stderr, _SILENT):
            raise SlurmUnavailableError(command, status, stderr, "slurmctld")
        if status is None or status <= 0 or _says(stderr, _SILENT):
            raise AmbiguousError(command, status, stderr or stdout)
        raise SlurmError(command, status, stderr)

    def squeue(self, ids: Iterable[str | JobId] = (), user: str | None = None) -> tuple[Queued, ...]:
        """These jobs, or all of a user (this one, if nobody is named), those that ended minutes ago too.

        A job that slurmctld has forgotten is not there.
        """
        wanted = [str(each) for each in ids]
        which = [f"--jobs={','.join(wanted)}"] if wanted else [f"--user={user or os.getuid()}"]
        command = ["squeue", "--noheader", "--all", "--array", "--states=all", *which, f"--format={SQUEUE_FORMAT}"]
        status, stdout, stderr = self._run(command)
        if status != 0 and wanted and _says(stderr, _OVER[:1]):
            return ()
        return parse_squeue(self._checked(command, status, stdout, stderr))

    def end_times(self, ids: Iterable[str | JobId]) -> dict[JobId, float]:
        """When the time of these jobs is over, in seconds since 1970, of those that run and have a limit."""
        wanted = ",".join(str(each) for each in ids)
        if not wanted:
            return {}
        shape = ["--noheader", "--all", "--array", "--states=running", f"--format=%i{SEPARATOR}%e"]
        command = ["squeue", *shape, f"--jobs={wanted}"]
        status, stdout, stderr = self._run(command)
        if status != 0 and _says(stderr, _OVER[:1]):
            return {}
        return parse_end_times(self._checked(command, status, stdout, stderr))

    def sacct(
        self, ids: Iterable[str | JobId] = (), user: str | None = None, days: int = 7
    ) -> dict[JobId, tuple[Incarnation, ...]]:
        """All incarnations of these jobs, or of a user's jobs of the last days. That a job is missing means nothing."""
        wanted = [str(each) for each in ids]
        which = [f"--jobs={','.join(wanted)}"] if wanted else [f"--user={user or os.getuid()}"]
        since = [] if wanted else [f"--starttime=now-{days}days"]
        shape = ["--allocations", "--parsable2", "--noheader", "--duplicates", f"--delimiter={SEPARATOR}"]
        command = ["sacct", *shape, *which, *since, f"--format={','.join(SACCT_FIELDS)}"]
        return parse_sacct(self._checked(command, *self._run(command)))

    def account(self, job: str | JobId) -> list[JobAccount]:
        """What accounting has of a job and of its steps, in all of its starts, the oldest first."""
        shape = ["--parsable2", "--noheader", "--duplicates", f"--delimiter={SEPARATOR}"]
        command = ["sacct", *shape, f"--jobs={job}", f"--format={','.join(ACCOUNT_FIELDS)}"]
        return parse_account(self._checked(command, *self._run(command)))

    def scancel(
        self, ids: Iterable[str | JobId], state: Literal["PENDING", "RUNNING", "SUSPENDED"] | None = None
    ) -> None:
        """Cancel these jobs, or those of them in one state. That one has ended already is no error."""
        wanted = [str(each) for each in ids]
        command = ["scancel", *([f"--state={state}"] if state else []), *wanted]
        if not wanted:
            return
        status, stdout, stderr = self._run(command)
        complaints = [line for line in stderr.splitlines() if line.strip()]
        if status != 0 and not (complaints and all(_says(line, _OVER) for line in complaints)):
            self._checked(command, status, stdout, stderr)

    def show_config(self) -> str:
        """The text of `scontrol show config`."""
        command = ["scontrol", "show", "config"]
        return self._checked(command, *self._run(command))

    def show_partition(self, name: str | None = None) -> str:
        """The text of `scontrol show partition`, a line per partition, hidden ones too."""
        command = ["scontrol", "--all", "--oneliner", "show", "partition", *([name] if name else [])]
        return self._checked(command, *self._run(command))

    def nodes(self, partitions: str) -> list[NodeKind]:
        """The nodes of these partitions (`a,b`), hidden ones too, by what they have. One call."""
        command = ["sinfo", "--noheader", "--exact", f"--partition={partitions}", f"--format={NODE_FORMAT}"]
        return parse_nodes(self._checked(command, *self._run(command)))

    def site(self) -> SlurmSite:
        """What this Slurm is; two calls."""
        return read_site(self.show_config(), self.show_partition())

    def requeue(self, job: str | JobId) -> Requeued:
        """Queue a job again, also an ended one; an element of an array alone, a heterogeneous job by its leader."""
        command = ["scontrol", "requeue", str(job)]
        status, stdout, stderr = self._run(command)
        said = stderr + stdout
        if status != 0 and _says(said, ("pending execution",)):
            return Requeued.ALREADY
        if status != 0 and _says(said, ("presently disabled",)):
            return Requeued.REFUSED
        self._checked(command, status, stdout, stderr)
        return Requeued.DONE

    def set_begin(self, job: str | JobId, seconds: float) -> None:
        """A pending job starts no sooner than in so many seconds."""
        command = ["scontrol", "update", f"JobId={job}", f"StartTime=now+{max(0, round(seconds))}"]
        self._checked(command, *self._run(command))

    def show_job(self, job: str | JobId) -> dict[str, str]:
        """The fields of `scontrol show job`; of those with spaces in their values, the first word."""
        command = ["scontrol", "--oneliner", "show", "job", str(job)]
        return parse_pairs(self._checked(command, *self._run(command)))

    def find_by_comment(self, comment: str) -> tuple[str, ...]:
        """Ids of this user's jobs and arrays whose comment begins with these words, the oldest first."""
        return self.find_by_comments([comment])[comment]

    def find_by_comments(self, comments: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """As `find_by_comment`, for each of several comments, with one call.

        Asks the controller, and for those of which it knows no job, the accounting, which keeps no comments on most
        sites. Finding none is no proof while a job may still be on its way. Raises SlurmUnavailableError where the
        controller does not answer.
        """
        said = [(queued.id.job, queued.comment) for queued in self.squeue()]
        found = {comment: _ids(said, comment) for comment in comments}
        if not all(found.values()):
            with contextlib.suppress(SlurmUnavailableError):
                known = self.sacct()
                said = [(job.job, each.comment) for job, incarnations in known.items() for each in incarnations]
                found = {comment: ids or _ids(said, comment) for comment, ids in found.items()}
        return found

    def find_in_queue(self, comments: Iterable[str]) -> tuple[str, ...]:
        """Ids of this user's jobs that have not ended and whose comment begins with one of these. One call."""
        said = [(queued.id.job, queued.comment) for queued in self.squeue() if queued.state.is_alive]
        return tuple(job for comment in comments for job in _ids(said, comment))

    def _run(self, command: Sequence[str]) -> tuple[int | None, str, str]:
        """Exit status (None: it took too long and was killed), stdout, stderr."""
        executable = shutil.which(command[0], path=self._environment.get("PATH", os.defpath))
        if executable is None:
            raise SlurmUnavailableError(command, None, f"there is no {command[0]} in PATH", command[0])
        self.calls[command[0]] += 1
        try:
            done = subprocess.run(
                [executable, *command[1:]],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                umask=0o077,  # sbatch hands it on to the job, and to the file of its output
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            return None, "", f"no answer in {self._timeout_s:.0f} s"
        except OSError as error:
            raise SlurmUnavailableError(command, None, str(error), command[0]) from error
        return done.returncode, done.stdout, done.stderr

    def _checked(self, command: Sequence[str], status: int | None, stdout: str, stderr: str) -> str:
        if status == 0:
            return stdout
        if _says(stderr, ("accounting storage is disabled",)):
            raise SlurmUnavailableError(command, status, stderr, "accounting")
        if status is None or status < 0 or _says(stderr, _SILENT + _BUSY):
            missing = "slurmdbd" if command[0] == "sacct" else "slurmctld"
            raise SlurmUnavailableError(command, status, stderr, missing)
        raise SlurmError(command, status, stderr)


def _says(text: str, phrases: Iterable[str]) -> bool:
    said = text.lower()
    return any(phrase in said for phrase in phrases)


def _ids(said: Iterable[tuple[int, str]], words: str) -> tuple[str, ...]:
    return tuple(str(job) for job in sorted({job for job, comment in said if _begins(comment, words)}))


def _begins(comment: str, words: str) -> bool:
    return f"{comment} ".startswith(f"{words} ")
