"""The small documents that frame a run: what they hold, as JSON, and how damage to them is noticed. No I/O."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from hpcrl.data.user_code import CodeSetting
from hpcrl.errors import InternalError, Nature

RESTORE = "Restore it from a backup, or submit a new run."
"""What helps where a document is lost that no other says again."""
FORMAT = 8
"""Of all that is in a run directory. Raised with every change after which older runs cannot be resumed."""
SHOWN = (7, 8)
"""The formats of runs that can be looked at: FORMAT, and older ones from the first on that had all that is shown."""

Record = TypeVar("Record", bound=msgspec.Struct)
Sealed = TypeVar("Sealed", "RunRecord", "SettingsRecord", "SubmittedSettings", "CodeCopy")


class KeyPair(msgspec.Struct, frozen=True):
    """The run's CURVE keys as Z85 text. Whoever holds the secret one is a member of the run."""

    public: str
    secret: str


class RunFormat(msgspec.Struct, frozen=True):
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
    number: int
    """Its place in the order in which submissions were recorded; some numbers have no record."""
    time: float


class SettingsRecord(msgspec.Struct, frozen=True):
    """`settings/<version>.json`: all settings of a run from this version on, and the number of the copy of the user's
    code that it runs.

    Version 0 is what `run.json` holds. `digest` covers all else, so that damage is noticed.
    """

    version: int
    experiment: dict[str, Any]
    code: int
    created: float
    digest: str


class SubmittedSettings(msgspec.Struct, frozen=True):
    """`submission/<nonce>.settings`: the version that a submission runs; without it, that is version 0."""

    version: int
    digest: str


class CopiedFile(msgspec.Struct, frozen=True):
    """What was copied: bytes, and the BLAKE2b digest of them."""

    size: int
    digest: str


class CodeCopy(msgspec.Struct, frozen=True):
    """`code/NNN/MANIFEST.json`: the user's code as it was copied, `files` by the absolute path that they had.

    `digest` covers all else, so that damage is noticed.
    """

    settings: dict[str, CodeSetting]
    files: dict[str, CopiedFile]
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
    """`verdict.json` of an attempt: why it ended. With attempt None, of a start of a submission that came to none."""

    attempt: int | None
    state: str
    exit_code: int
    reason: str
    worker: str | None
    call: str | None
    traceback: str | None
    time: float
    nature: Nature = ""


class Command(msgspec.Struct, frozen=True):
    """`control/<name>.json`: any process that can write the run directory → a submission's master.

    Who finishes opens no step and ends with a checkpoint once the open ones are closed; a drain lets calls in flight
    end; a stop does not.
    """

    command: Literal["pause", "continue", "finish", "drain", "stop"]
    submission: str


class Answer(msgspec.Struct, frozen=True):
    """`control/<name>.answer`: what the master made of the command of that name, and what holds from then on.

    `refused`: the file is no command, `why` says what is wrong with it. `attempt` is None between two of them.
    """

    done: Literal["obeyed", "unchanged", "refused"]
    state: Literal["running", "paused", "finishing", "draining", "stopping"]
    attempt: int | None
    time: float
    why: str = ""


def changed_inputs(frozen: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Names of inputs (data sets, base weights, user code) whose fingerprints differ, or that only one side has."""
    return sorted(name for name in frozen.keys() | current.keys() if frozen.get(name) != current.get(name))


def encode(record: msgspec.Struct) -> bytes:
    """As a person can read it."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def decode(data: bytes, kind: type[Record], path: Path, advice: str = RESTORE) -> Record:
    """Raises InternalError where it is damaged; `path` and `advice` are only for the message."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InternalError(f"{path} is damaged: {error}.", advice) from error


def sealed(record: Sealed) -> Sealed:
    """The record with the digest of all else in it."""
    return msgspec.structs.replace(record, digest=_digest(record))


def decode_sealed(data: bytes, kind: type[Sealed], path: Path, advice: str = RESTORE) -> Sealed:
    """As `decode`, of a record whose content must match its digest."""
    record = decode(data, kind, path, advice)
    if record.digest != _digest(record):
        raise InternalError(f"{path} is damaged: its content does not match its digest {record.digest}.", advice)
    return record


def _digest(record: RunRecord | SettingsRecord | SubmittedSettings | CodeCopy) -> str:
    covered = msgspec.to_builtins(msgspec.structs.replace(record, digest=""))
    return hashlib.blake2b(json.dumps(covered, sort_keys=True).encode(), digest_size=16).hexdigest()
