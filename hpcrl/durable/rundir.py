"""The run directory: who has claimed which attempt, what was submitted, and how an attempt ended.

Knows what the small documents mean that frame a run; knows nothing of what journals, spills and checkpoints contain.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.data.user_code import NO_CODE, UserCode
from hpcrl.durable.claim import claim_of_this_process
from hpcrl.durable.code import MANIFEST, with_code, write_code
from hpcrl.durable.exclusive import AlreadyPublishedError
from hpcrl.durable.files import Fault, Files, no_fault, unreadable
from hpcrl.durable.numbers import publish_next
from hpcrl.durable.paths import (
    RunPaths,
    attempt_number,
    attempt_of,
    is_document,
    version_number,
)
from hpcrl.durable.place import make_place, refuse_no_run
from hpcrl.durable.records import (
    FORMAT,
    RESTORE,
    SHOWN,
    Answer,
    Claim,
    CodeCopy,
    Command,
    KeyPair,
    Record,
    RunFormat,
    RunRecord,
    SettingsRecord,
    Submission,
    SubmittedSettings,
    Verdict,
    decode,
    decode_sealed,
    encode,
    sealed,
)
from hpcrl.errors import ConfigurationError, InternalError


class RunDirectory(RunPaths):
    """One run on disk. Holds no state besides its root, file operations and the formats that it takes."""

    def __init__(self, root: Path, fault: Fault = no_fault, formats: Collection[int] = (FORMAT,)) -> None:
        super().__init__(root)
        self.files = Files(root, fault)
        self._formats = formats

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        experiment: Mapping[str, Any],
        host: str,
        key: KeyPair,
        inputs: Mapping[str, str],
        code: UserCode = NO_CODE,
        begin: Callable[["RunDirectory"], object] = lambda _: None,
        fault: Fault = no_fault,
    ) -> "RunDirectory":
        """Make a new run; `begin` may give it an attempt. `run.json` comes last: without it a directory is no run.

        Raises ConfigurationError where `root` exists and holds anything, or has characters that Slurm reads otherwise.
        """
        make_place(root := root.absolute())
        run = cls(root, fault)
        run.write_key(key)
        folders = (run.submission, run.settings, run.control, run.attempts, run.spills, run.checkpoints, run.exports)
        for directory in folders:
            run.files.make_directory(directory)
        run.keep_code(code)
        begin(run)
        record = RunRecord(FORMAT, dict(experiment), host, dict(inputs), time.time(), "")
        run.files.publish(run.run_json, encode(sealed(record)), "run")
        return run

    @classmethod
    def open(cls, root: Path, fault: Fault = no_fault) -> "RunDirectory":
        """An existing run. Raises ConfigurationError where there is none, or one of another format."""
        return cls(root.absolute(), fault)._checked(root)

    @classmethod
    def look(cls, root: Path) -> "RunDirectory":
        """The same for those who only look at a run, which may be of an older format; it is not resumed from here."""
        return cls(root.absolute(), formats=SHOWN)._checked(root)

    def _checked(self, root: Path) -> "RunDirectory":
        refuse_no_run(root, self.run_json.name, self.files.listing)
        self._refuse_other_format(self.files.read_document(self.run_json, RESTORE))
        return self

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def numbers(self) -> list[int]:
        """The attempts that were claimed, in order."""
        numbers = map(attempt_number, self.files.listing(self.attempts))
        return sorted(number for number in numbers if number is not None)

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
        self.files.publish(self.claim(number), encode(claim_of_this_process(submission)), "claim")
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
        data = self.files.read_document(self.run_json, RESTORE)
        self._refuse_other_format(data)
        return decode_sealed(data, RunRecord, self.run_json)

    def _refuse_other_format(self, data: bytes) -> None:
        """Its journals would look damaged, and the run would begin anew from the base weights."""
        found = decode(data, RunFormat, self.run_json).format
        if found not in self._formats:
            raise ConfigurationError(
                [f"{self.root} has format {found}; this hpcrl reads and writes format {FORMAT} only."],
                "Resume it with the hpcrl that made it, or submit anew.",
            )

    def write_key(self, key: KeyPair) -> None:
        """Of a run that has none."""
        self.files.publish(self.key_json, msgspec.json.encode(key), "key")

    def read_claim(self, attempt: int) -> Claim | None:
        return self.read_if_there(self.claim(attempt), Claim)

    def record_submission(self, nonce: str, jobs: Mapping[str, int | str]) -> None:
        record = Submission(nonce, dict(jobs), self._next_place(), time.time())
        self.files.publish(self.submission_json(nonce), encode(record), "submission")

    def record_successor(self, nonce: str, name: str, job: str) -> None:
        """Who has sent the job may do it, and the job itself: whoever comes first."""
        record = Submission(nonce, {name: job}, self._next_place(), time.time())
        with contextlib.suppress(AlreadyPublishedError):
            self.files.publish(self.successor_json(nonce, job), encode(record), "submission")

    def keep_code(self, code: UserCode) -> int:
        """Copy the user's code into the run; returns the number of the copy."""
        number = self.newest_code() + 1
        self.files.directory(self.code)
        while not self.files.publish_folder(self.code_copy(number), 0, partial(write_code, code), "code"):
            number += 1
        return number

    def newest_code(self) -> int:
        """The number of the copy that was made last; -1 before there is one."""
        numbers = map(attempt_number, self.files.listing(self.code))
        return max((number for number in numbers if number is not None), default=-1)

    def read_code(self, number: int) -> CodeCopy:
        """What is in a copy of the user's code."""
        path = self.code_copy(number) / MANIFEST
        return decode_sealed(self.files.read_document(path, RESTORE), CodeCopy, path)

    def _next_place(self) -> int:
        """Of several processes that try, each gets one of its own."""
        names = self.files.listing(self.submission)
        return publish_next(names, lambda number: self.files.publish(self.place_in_order(number), b"", "number"))

    def versions(self) -> list[int]:
        """The versions of its settings that there are, in order; 0 is what it was submitted with."""
        numbers = map(version_number, self.files.listing(self.settings))
        return [0, *sorted(number for number in numbers if number is not None)]

    def add_settings(self, experiment: Mapping[str, Any], code: int = 0) -> int:
        """Publish the next version of its settings, whole; which one it is.

        Raises ConfigurationError where somebody else has just published that one.
        """
        version = self.versions()[-1] + 1
        record = sealed(SettingsRecord(version, dict(experiment), code, time.time(), ""))
        try:
            self.files.publish(self.settings_json(version), encode(record), "settings")
        except AlreadyPublishedError as error:
            raise ConfigurationError([f"{self.root} is being resumed with other settings by somebody else."]) from error
        return version

    def read_settings(self, version: int) -> SettingsRecord:
        """All settings of a version. Every process reads the one of its submission, and those that it replays."""
        if version:
            path = self.settings_json(version)
            return decode_sealed(self.files.read_document(path, RESTORE), SettingsRecord, path)
        record = self.read_run()
        return SettingsRecord(0, record.experiment, 0, record.created, "")

    def submit_settings(self, nonce: str, version: int) -> None:
        """This submission runs this version, from 1 on, even if a later one is added. Said before it is sent."""
        record = sealed(SubmittedSettings(version, ""))
        self.files.publish(self.settings_of(nonce), encode(record), "settings")

    def version_of(self, nonce: str) -> int:
        """The version that a submission runs.

        The name is asked for, not the listing, which a network disk may show as it was before the submission; nobody
        has asked for this name before its submission was made, so that its absence is not remembered anywhere.
        """
        path, advice = self.settings_of(nonce), f"`hpcrl resume {self.root}` runs the newest settings."
        try:
            data = self.files.read(path)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise InternalError(f"{unreadable(path, error)}.", advice) from error
        return decode_sealed(data, SubmittedSettings, path, advice).version

    def configuration(self, nonce: str | None = None) -> dict[str, Any]:
        """The settings that a submission runs; without one, the newest."""
        return self.configuration_of(self.versions()[-1] if nonce is None else self.version_of(nonce))

    def configuration_of(self, version: int) -> dict[str, Any]:
        """A version of the settings, with the run's copy of the user's code in the place of what was copied."""
        record = self.read_settings(version)
        return with_code(record.experiment, self.read_code(record.code).settings, self.code_copy(record.code))

    def accept(self, nonce: str, fingerprints: Mapping[str, str]) -> None:
        """The user lets these inputs be what they are now, from this submission on."""
        self.files.publish(self.accepted(nonce), msgspec.json.encode(fingerprints), "accepted")

    def accepted_by(self, nonce: str) -> dict[str, str]:
        """Name → fingerprint of the inputs that were accepted with a submission."""
        path = self.accepted(nonce)
        if path.name not in self.files.listing(self.submission):
            return {}
        advice = f"Accept them again: `hpcrl resume {self.root} --accept-changed …`."
        try:
            return msgspec.json.decode(self.files.read_document(path, advice), type=dict[str, str])
        except msgspec.DecodeError as error:
            raise InternalError(f"{path} is damaged: {error}.", advice) from error

    def submissions(self) -> list[Submission]:
        """All submissions, oldest first."""
        paths = [self.submission / name for name in self.files.listing(self.submission) if is_document(name)]
        records = [self.read_if_there(path, Submission) for path in paths]
        return sorted((record for record in records if record is not None), key=lambda record: record.number)

    def newest_nonce(self) -> str | None:
        """The submission that was made last; successors of an older one's jobs do not count."""
        begun = dict.fromkeys(submission.nonce for submission in self.submissions())
        return next(reversed(begun), None)

    def jobs_of(self, nonce: str) -> dict[str, str]:
        """Job id → name, of all jobs of a submission, successors included."""
        ours = (submission for submission in self.submissions() if submission.nonce == nonce)
        return {str(job): name for submission in ours for name, job in submission.jobs.items()}

    def jobs_named(self, nonce: str, *names: str) -> list[str]:
        """Ids of a submission's jobs of these names (master, workers, run), successors included."""
        return [job for job, name in self.jobs_of(nonce).items() if name in names]

    def publish_command(self, command: Command) -> str:
        """Returns the command's name, by which its answer is read: its number, which no other command has."""
        names, data = self.files.listing(self.control), msgspec.json.encode(command)
        number = publish_next(names, lambda it: self.files.publish(self.command(f"{it:06d}"), data, "control"))
        return f"{number:06d}"

    def is_told_to_stop(self, submission: str) -> bool:
        """Whether a user wants it to end at once, heard or not. (Who is to finish what is open needs its nodes.)"""
        for file in self.files.listing(self.control):
            if file.endswith(".json") and not file.startswith("."):
                with contextlib.suppress(msgspec.DecodeError, OSError):
                    command = msgspec.json.decode(self.files.read(self.control / file), type=Command)
                    if command.submission == submission and command.command in ("drain", "stop"):
                        return True
        return False

    def publish_answer(self, name: str, answer: Answer) -> None:
        """The first answer stays."""
        with contextlib.suppress(AlreadyPublishedError):
            self.files.publish(self.answer(name), encode(answer), "answer")

    def read_answer(self, name: str) -> Answer | None:
        return self.read_if_there(self.answer(name), Answer)

    def verdict_of(self, submission: str) -> Verdict | None:
        """How this submission ended last: its newest attempt, or a later start that came to none."""
        number = self.newest_attempt_of(submission)
        early = self.read_if_there(self.early_verdict(submission, number), Verdict)
        return self.read_verdict(number) if early is None and number is not None else early

    def newest_verdict(self) -> Verdict | None:
        """How the run ended last: its newest attempt, or a newer submission that came to none."""
        nonce, number = self.newest_nonce(), self.newest_attempt()
        verdict = None if nonce is None else self.verdict_of(nonce)
        if number is None or (verdict is not None and verdict.attempt is None):
            return verdict
        return self.read_verdict(number)

    def publish_verdict(self, attempt: int, verdict: Verdict) -> None:
        self.files.publish(self.verdict(attempt), encode(verdict), "verdict")

    def publish_early_verdict(self, submission: str, verdict: Verdict) -> None:
        """Of a start that came to no attempt. The first stays until there is an attempt."""
        path = self.early_verdict(submission, self.newest_attempt_of(submission))
        with contextlib.suppress(AlreadyPublishedError):
            self.files.publish(path, encode(verdict), "verdict")

    def done(self, nonce: str) -> Verdict | None:
        """The verdict that the run is done, under this submission's settings or later ones."""
        for number in reversed(self.numbers()):
            verdict, claim = self.read_verdict(number), self.read_claim(number)
            if verdict is not None and verdict.state == "done":
                counts = claim is not None and self.version_of(claim.submission) >= self.version_of(nonce)
                return verdict if counts else None
        return None

    def done_verdict(self) -> Verdict | None:
        """How the run ended last, if it is done."""
        verdict = self.newest_verdict()
        return verdict if verdict is not None and verdict.state == "done" else None

    def has_newer_settings(self, done: Verdict) -> bool:
        """Whether there are settings under which a run that is done has not run yet: an extension that never began."""
        claim = None if done.attempt is None else self.read_claim(done.attempt)
        return claim is not None and self.version_of(claim.submission) < self.versions()[-1]

    def read_verdict(self, attempt: int) -> Verdict | None:
        return self.read_if_there(self.verdict(attempt), Verdict)

    def read_if_there(self, path: Path, kind: type[Record]) -> Record | None:
        """A document that nothing depends on: None where it is missing, damaged or cannot be read."""
        if path.name not in self.files.listing(path.parent):
            return None
        try:
            return decode(self.files.read(path), kind, path)
        except (InternalError, OSError):
            return None
