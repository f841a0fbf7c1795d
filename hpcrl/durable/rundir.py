"""The run directory: all of its paths, who has claimed which attempt, and the small documents that frame a run.

Knows where everything lies and what names mean; knows nothing of what journals, spills and checkpoints contain.
"""

import contextlib
import hashlib
import json
import os
import re
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hpcrl.config.experiment import Experiment, from_dict
from hpcrl.config.placement import with_placement
from hpcrl.durable.files import DIRECTORY_MODE, AlreadyPublishedError, Fault, FileRef, Files, no_fault, sync_directory
from hpcrl.errors import ConfigurationError, InternalError

Record = TypeVar("Record", bound=msgspec.Struct)

FORMAT = 1
"""Of all that is in a run directory. Raised with every change after which runs of before cannot be gone on with."""

_ATTEMPT = re.compile(r"\d{3,}")
# A temporary name is the final one behind a dot; what follows the number may be anything, a host's name for instance.
_NUMBERED = re.compile(r"\.?[\w-]+(?:\.dp\d+)?\.a(?P<attempt>\d{3,})(?:\.|$)")
_STEP = re.compile(r"\.?step-(?P<step>\d{8,})(?:\.|$)")


class KeyPair(msgspec.Struct, frozen=True):
    """The run's CURVE keys as Z85 text. Whoever holds the secret one is a member of the run."""

    public: str
    secret: str


class _Format(msgspec.Struct, frozen=True):
    """The part of `run.json` that every hpcrl can read. Before there were formats there was no field."""

    format: int = 0


class RunRecord(msgspec.Struct, frozen=True):
    """`run.json`: what a run was submitted with. `digest` covers all else, so that damage is noticed."""

    format: int
    experiment: dict[str, Any]
    host: str
    inputs: dict[str, str]
    created: float
    digest: str


class Submission(msgspec.Struct, frozen=True):
    """`submission/<nonce>.json`: the jobs that were started together, by name: process ids, or ids of Slurm.

    `submission/<nonce>.<job>.json` tells of one that was sent later, in the place of one that cannot be queued again.
    """

    nonce: str
    jobs: dict[str, int | str]
    time: float


class Placement(msgspec.Struct, frozen=True):
    """`submission/<nonce>.placement`: settings that a submission has otherwise than `run.json`, by dotted key.

    `digest` covers them, so that damage is noticed.
    """

    settings: dict[str, Any]
    digest: str


class Claim(msgspec.Struct, frozen=True):
    """`claim.json` of an attempt: the process that took the number. Start time and boot tell a reused pid apart."""

    submission: str
    host: str
    pid: int
    pid_started: int
    boot_id: str
    time: float


class Verdict(msgspec.Struct, frozen=True):
    """`verdict.json` of an attempt: why it ended."""

    attempt: int
    state: str
    exit_code: int
    reason: str
    worker: str | None
    call: str | None
    traceback: str | None
    time: float


class RunDirectory:
    """One run on disk. Holds no state besides its root and the file operations."""

    def __init__(self, root: Path, fault: Fault = no_fault) -> None:
        self.root = root
        self.files = Files(root, fault)

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        experiment: Mapping[str, Any],
        host: str,
        key: KeyPair,
        inputs: Mapping[str, str],
        fault: Fault = no_fault,
    ) -> "RunDirectory":
        """Make a new run. `run.json` comes last: without it a directory is no run.

        Raises ConfigurationError where `root` exists and holds anything.
        """
        root = root.absolute()
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            root.mkdir(DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            raise ConfigurationError([f"{root} cannot be made: {error.strerror}. Choose another --run-dir."]) from error
        if taken := sorted(os.listdir(root)):
            raise ConfigurationError([f"{root} is to become a run, but it holds {taken[0]}. Choose another --run-dir."])
        root.chmod(DIRECTORY_MODE)
        sync_directory(root.parent)
        run = cls(root, fault)
        run.files.publish(run.key_json, msgspec.json.encode(key), "key")
        for directory in (run.submission, run.control, run.attempts, run.spills, run.checkpoints, run.exports):
            run.files.make_directory(directory)
        record = RunRecord(FORMAT, dict(experiment), host, dict(inputs), time.time(), "")
        record = msgspec.structs.replace(record, digest=_digest(record))
        run.files.publish(run.run_json, _document(record), "run")
        return run

    @classmethod
    def open(cls, root: Path, fault: Fault = no_fault) -> "RunDirectory":
        """An existing run. Raises ConfigurationError where there is none, or one of another format."""
        run = cls(root.absolute(), fault)
        if run.run_json.name not in run.files.listing(run.root):
            raise ConfigurationError([f"{root} is no run: it has no run.json. Name the directory that submit printed."])
        run._refuse_other_format(run.files.read(run.run_json))
        return run

    # ── paths ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def run_json(self) -> Path:
        return self.root / "run.json"

    @property
    def key_json(self) -> Path:
        return self.root / "key.json"

    @property
    def submission(self) -> Path:
        return self.root / "submission"

    @property
    def control(self) -> Path:
        return self.root / "control"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def spills(self) -> Path:
        return self.root / "spills"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def exports(self) -> Path:
        return self.root / "export"

    def submitit_folder(self, nonce: str) -> Path:
        return self.submission / nonce

    def attempt(self, number: int) -> Path:
        return self.attempts / f"{number:03d}"

    def claim(self, attempt: int) -> Path:
        return self.attempt(attempt) / "claim.json"

    def plan(self, attempt: int) -> Path:
        return self.attempt(attempt) / "plan.json"

    def adopted(self, attempt: int) -> Path:
        return self.attempt(attempt) / "adopted.json"

    def journal(self, attempt: int) -> Path:
        return self.attempt(attempt) / "journal.jsonl"

    def metrics(self, attempt: int) -> Path:
        return self.attempt(attempt) / "metrics.jsonl"

    def events(self, attempt: int) -> Path:
        return self.attempt(attempt) / "events.jsonl"

    def logs(self, attempt: int) -> Path:
        return self.attempt(attempt) / "logs"

    def worker_log(self, attempt: int, name: str) -> Path:
        return self.logs(attempt) / f"{name}.jsonl"

    def rendezvous(self, attempt: int) -> Path:
        return self.attempt(attempt) / "rendezvous"

    def closed(self, attempt: int) -> Path:
        return self.attempt(attempt) / "CLOSED"

    def verdict(self, attempt: int) -> Path:
        return self.attempt(attempt) / "verdict.json"

    def step_spills(self, step: int) -> Path:
        return self.spills / f"step-{step:08d}"

    def spill(self, step: int, call: str, part: int, attempt: int) -> Path:
        return self.step_spills(step) / f"{call}.dp{part:02d}.a{attempt:03d}.h5"

    def compacted(self, step: int, attempt: int) -> Path:
        return self.spills / f"step-{step:08d}.a{attempt:03d}.h5"

    def checkpoint(self, step: int, attempt: int) -> Path:
        return self.checkpoints / f"step-{step:08d}.a{attempt:03d}"

    def manifest(self, step: int, attempt: int) -> Path:
        return self.checkpoint(step, attempt) / "MANIFEST.json"

    def export(self, role: str, step: int) -> Path:
        return self.exports / role / f"step-{step:08d}"

    def renumbered(self, name: str, attempt: int) -> Path:
        """Where `attempt` keeps what another attempt calls `name` (a spill, or anything within a checkpoint)."""
        changed, count = re.subn(r"\.a\d{3,}(?=[./])", f".a{attempt:03d}", name, count=1)
        if not count:
            raise InternalError(f"{name} carries no attempt's number, so that no other attempt can take it over")
        return self.root / changed

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def numbers(self) -> list[int]:
        """The attempts that were claimed, in order."""
        return sorted(int(name) for name in self.files.listing(self.attempts) if _ATTEMPT.fullmatch(name))

    def newest_attempt(self) -> int | None:
        return max(self.numbers(), default=None)

    def newest_attempt_of(self, submission: str) -> int | None:
        """The newest attempt that this submission has claimed."""
        for number in reversed(self.numbers()):
            claim = self.read_claim(number)
            if claim is not None and claim.submission == submission:
                return number
        return None

    def claim_attempt(self, submission: str) -> int:
        """Take the next number: of several processes that try, each gets one of its own.

        From here on the number is taken; it begins to count for later attempts when its `adopted.json` is published.
        """
        number = max(self.numbers(), default=-1) + 1
        while True:
            try:
                self.files.make_directory(self.attempt(number))
                break
            except FileExistsError:
                number += 1
        self.files.fault("claim.made")
        self.files.make_directory(self.logs(number))
        self.files.make_directory(self.rendezvous(number))
        self.files.publish(self.claim(number), _document(_claim_of_this_process(submission)), "claim")
        return number

    def superseded(self, attempt: int) -> bool:
        """Whether a newer attempt counts, so that nothing which `attempt` writes from now on does.

        The master asks before each append and each heartbeat. It may be overtaken between the question and the write:
        that is harmless, because the newer attempt has already said, in its `adopted.json`, how many bytes of this
        journal it believes, and has linked every file that they name under its own number.
        """
        newer = [number for number in self.numbers() if number > attempt]
        return any(self.has_adopted(number) for number in newer)

    def has_adopted(self, attempt: int) -> bool:
        """Whether the attempt has published what it believes; asked of the listing, never of a name not yet there."""
        return self.adopted(attempt).name in self.files.listing(self.attempt(attempt))

    def close(self, attempt: int) -> None:
        """Nobody is to join this attempt any more."""
        self.files.publish(self.closed(attempt), b"", "closed")

    def is_closed(self, attempt: int) -> bool:
        return self.closed(attempt).name in self.files.listing(self.attempt(attempt))

    # ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def remove(self, path: Path, attempt: int, point: str) -> bool:
        """Unlink a name of this attempt or of an older one; False if it is gone already.

        Names of older attempts may go, because whatever this attempt still needs of them it has linked under its own
        number before it began to count, and an attempt that reads older names while they vanish reads the history
        again. Names of newer attempts are never touched: this attempt is then the late one.
        """
        number = attempt_of(path.name)
        number = attempt_of(path.parent.name) if number is None else number
        if number is None or number > attempt:
            raise InternalError(f"attempt {attempt} must not remove {path}: it is not its own, nor of an older attempt")
        return self.files.unlink(path, point)

    # ── documents ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def read_run(self) -> RunRecord:
        """Every process of a run reads it first. Raises ConfigurationError for a run of another format."""
        data = self.files.read(self.run_json)
        self._refuse_other_format(data)
        record = _decode(data, RunRecord, self.run_json)
        if record.digest != _digest(record):
            raise InternalError(f"{self.run_json} is damaged: its content does not match its digest {record.digest}")
        return record

    def _refuse_other_format(self, data: bytes) -> None:
        """Its journals would look damaged, and the run would begin anew from the base weights."""
        found = _decode(data, _Format, self.run_json).format
        if found != FORMAT:
            raise ConfigurationError(
                [
                    f"{self.root} has format {found}; this hpcrl reads and writes format {FORMAT} only. "
                    f"Go on with the hpcrl that made it, or submit anew."
                ]
            )

    def read_key(self) -> KeyPair:
        """The run's keys; refused unless the file is a plain one that only its owner, this user, can read."""
        descriptor = os.open(self.key_json, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            mode = stat.S_IMODE(status.st_mode)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
                raise InternalError(
                    f"{self.key_json} has owner {status.st_uid} and mode {mode:04o}; the key must be a plain file "
                    f"of user {os.geteuid()} that nobody else can read. chmod 600 it, or submit anew if others read it."
                )
            return _decode(file.read(), KeyPair, self.key_json)

    def read_claim(self, attempt: int) -> Claim | None:
        return self._read_if_there(self.claim(attempt), Claim)

    def record_submission(self, nonce: str, jobs: Mapping[str, int | str]) -> None:
        record = Submission(nonce, dict(jobs), time.time())
        self.files.publish(self.submission / f"{nonce}.json", _document(record), "submission")

    def record_successor(self, nonce: str, name: str, job: str) -> None:
        """Who has sent the job may do it, and the job itself: whoever comes first."""
        record = Submission(nonce, {name: job}, time.time())
        with contextlib.suppress(AlreadyPublishedError):
            self.files.publish(self.submission / f"{nonce}.{job}.json", _document(record), "submission")

    def place(self, nonce: str, settings: Mapping[str, Any]) -> None:
        """This submission runs elsewhere than `run.json` says: in these settings of placement, and in no others."""
        record = Placement(dict(settings), "")
        record = msgspec.structs.replace(record, digest=_digest(record))
        self.files.publish(self._placement(nonce), _document(record), "placement")

    def experiment(self, nonce: str | None = None) -> Experiment:
        """What a submission, by default the newest, runs: `run.json` with the placement of that submission."""
        return from_dict(self.experiment_values(nonce))

    def experiment_values(self, nonce: str | None = None) -> dict[str, Any]:
        """The same as JSON holds it."""
        nonce = self.newest_nonce() if nonce is None else nonce
        return with_placement(self.read_run().experiment, {} if nonce is None else self._placed(nonce))

    def _placed(self, nonce: str) -> dict[str, Any]:
        """The settings that a submission has otherwise.

        The name is asked for, not the listing, which a network disk may show as it was before the submission; nobody
        has asked for this name before its submission was made, so that its absence is not remembered anywhere.
        """
        path = self._placement(nonce)
        try:
            record = _decode(self.files.read(path), Placement, path)
        except FileNotFoundError:
            return {}
        if record.digest != _digest(record):
            raise InternalError(f"{path} is damaged: its content does not match its digest {record.digest}")
        return record.settings

    def _placement(self, nonce: str) -> Path:
        return self.submission / f"{nonce}.placement"

    def accept(self, nonce: str, fingerprints: Mapping[str, str]) -> None:
        """The user lets these inputs be what they are now, from this submission on."""
        self.files.publish(self.submission / f"{nonce}.accepted", msgspec.json.encode(fingerprints), "accepted")

    def accepted_by(self, nonce: str) -> dict[str, str]:
        """Name → fingerprint of the inputs that were accepted with a submission."""
        path = self.submission / f"{nonce}.accepted"
        if path.name not in self.files.listing(self.submission):
            return {}
        return msgspec.json.decode(self.files.read(path), type=dict[str, str])

    def submissions(self) -> list[Submission]:
        """All submissions, oldest first."""
        paths = [self.submission / name for name in self.files.listing(self.submission) if _is_document(name)]
        records = [self._read_if_there(path, Submission) for path in paths]
        return sorted((record for record in records if record is not None), key=lambda record: record.time)

    def newest_nonce(self) -> str | None:
        """The submission that was made last; successors of an older one's jobs do not count."""
        begun: dict[str, float] = {}
        for submission in self.submissions():
            begun.setdefault(submission.nonce, submission.time)
        return max(begun, key=lambda nonce: begun[nonce], default=None)

    def jobs_of(self, nonce: str) -> dict[str, str]:
        """Job id → name, of all jobs of a submission, successors included."""
        ours = (submission for submission in self.submissions() if submission.nonce == nonce)
        return {str(job): name for submission in ours for name, job in submission.jobs.items()}

    def jobs_named(self, nonce: str, *names: str) -> list[str]:
        """Ids of a submission's jobs of these names (master, workers, run), successors included."""
        return [job for job, name in self.jobs_of(nonce).items() if name in names]

    def verdict_of(self, submission: str) -> "Verdict | None":
        """Of the newest attempt that this submission has claimed, if it has ended."""
        number = self.newest_attempt_of(submission)
        return None if number is None else self.read_verdict(number)

    def publish_verdict(self, verdict: Verdict) -> FileRef:
        return self.files.publish(self.verdict(verdict.attempt), _document(verdict), "verdict")

    def read_verdict(self, attempt: int) -> Verdict | None:
        return self._read_if_there(self.verdict(attempt), Verdict)

    def _read_if_there(self, path: Path, kind: type[Record]) -> Record | None:
        """A document that nothing depends on: None where it is missing or damaged."""
        if path.name not in self.files.listing(path.parent):
            return None
        try:
            return _decode(self.files.read(path), kind, path)
        except InternalError:
            return None


def attempt_of(name: str) -> int | None:
    """The attempt whose number a file or directory name carries; temporary names carry that of the final one."""
    found = _NUMBERED.match(name)
    return None if found is None else int(found["attempt"])


def step_of(name: str) -> int | None:
    """The step that the name of a spill, a compacted spill, a checkpoint or an export carries."""
    found = _STEP.match(name)
    return None if found is None else int(found["step"])


def changed_inputs(frozen: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Names of inputs (data sets, base weights, user code) whose fingerprints differ, or that only one side has."""
    return sorted(name for name in frozen.keys() | current.keys() if frozen.get(name) != current.get(name))


def _document(record: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def _decode(data: bytes, kind: type[Record], path: Path) -> Record:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InternalError(f"{path} is damaged: {error}") from error


def _is_document(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def _digest(record: RunRecord | Placement) -> str:
    covered = msgspec.to_builtins(msgspec.structs.replace(record, digest=""))
    return hashlib.blake2b(json.dumps(covered, sort_keys=True).encode(), digest_size=16).hexdigest()


def _claim_of_this_process(submission: str) -> Claim:
    stat_line = Path("/proc/self/stat").read_text()
    # The command's name, in parentheses, may hold anything; the start time is field 22, the twentieth behind it.
    started = int(stat_line.rpartition(")")[2].split()[19])
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Claim(submission, socket.gethostname(), os.getpid(), started, boot_id, time.time())
