"""Why each attempt of a run ended: what began it, who, where it is written, and what to do. Peers' failures and the
teardown that followed are folded.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from hpcrl.durable.origin import forked_from
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.events import CallFailed, WorkerEnded
from hpcrl.foreign import plain
from hpcrl.inspect.initiator import NATURES, by_words, initiator, process_of, users_lines
from hpcrl.inspect.job_ends import CODES, kind_of
from hpcrl.inspect.lines import last_lines
from hpcrl.inspect.nodes import change_at, in_words
from hpcrl.inspect.own_code import OwnCode, OwnLine, named_in
from hpcrl.inspect.queue import MASTERS
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.trail import MASTER, Fault, JobEnded, Told, ended_jobs, line_at, read_trail
from hpcrl.inspect.verdicts import VERDICTS, Confidence, Kind

LAST_BYTES, LAST_LINES = 4096, 5
"""Of what a job printed that ended before the run had begun."""
NOT_QUEUED_AGAIN = ("user_error", "internal_error", "cancelled", "left_to_slurm", "stopped", "done")


class Evidence(msgspec.Struct, frozen=True):
    """A line of a file of the run. `line` is 0 where it is the whole file."""

    file: str
    line: int
    text: str


class Folded(msgspec.Struct, frozen=True):
    """What followed from it: calls of others that failed, and workers that ended."""

    failures: int = 0
    ends: int = 0


class Cause(msgspec.Struct, frozen=True):
    """Why an attempt ended. `attempt` is None of a start that came to none, and of a run that waits for its jobs."""

    attempt: int | None
    kind: Kind
    verdict: str
    """The kind; of a hang, in what."""
    confidence: Confidence
    who: str
    """The process that began it; empty where somebody outside the run did."""
    where: str
    """The call, or what else it did."""
    said: str
    """What happened, with the lines of the user's code: in their files, of which the run executed copies."""
    time: float | None
    frames: str
    traceback: str
    """All lines, hpcrl's too."""
    evidence: list[Evidence]
    folded: Folded
    continued: bool
    """Whether another attempt went on."""
    next: str
    """The command to type; empty where the run goes on by itself."""
    edit: OwnLine | None = None
    """The line of the user's code that raised, where one did."""


class Why(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN why --json`: the newest first. Attempts that are done or still run have none."""

    run_dir: str
    causes: list[Cause]


def why(reader: RunReader) -> Why:
    return Why(str(reader.run.root), causes_of(reader.run))


def causes_of(run: RunDirectory) -> list[Cause]:
    numbers = sorted(run.numbers(), reverse=True)
    causes = [waiting] if (waiting := _waiting(run, numbers)) else []
    causes += _starts(run)
    begun = numbers[:-1] if forked_from(run) is not None else numbers
    ends = [cause for number in begun if (cause := cause_of(run, number)) is not None]
    if waiting is not None and ends and ends[0].attempt == numbers[0]:
        ends[0] = replace(ends[0], next="")  # its jobs are queued: it goes on by itself
    return causes + ends


def cause_of(run: RunDirectory, number: int) -> Cause | None:
    """None of an attempt that is done, or that may still be running."""
    trail = read_trail(run, number)
    found = initiator(trail)
    if found is None:
        return None
    continued = number + 1 in run.numbers()
    told = [each for each in trail.told if isinstance(each.event, CallFailed | WorkerEnded)]
    others = [each.event for each in told if process_of(each.event) != found.who]
    failures = {event.rank for event in others if isinstance(event, CallFailed)}
    ends = {event.rank for event in others if isinstance(event, WorkerEnded)}
    times = [each.entry.time for each in found.evidence if isinstance(each, Told)]
    own = OwnCode(run)
    edit = own.line(found.said, found.frames, found.traceback) if found.kind == "user's code" else None
    changed = change_at(run, number + 1) if continued else None
    then = "" if changed is None else f"\nThe run continued: it {in_words(changed)}."
    if found.kind == "more nodes" and changed is None and run.plan(number + 1).exists():
        then = "\nThe run continued on as many nodes as before: those that were to join were gone by then."
    verdict = f"hang in {found.where or found.who or 'starting'}" if found.kind == "hang" else found.kind
    return Cause(
        attempt=number,
        kind=found.kind,
        verdict=verdict,
        confidence=found.confidence,
        who=found.who,
        where=found.where,
        said=plain(own.named(found.said) + then),
        time=min(times, default=None),
        frames=plain(own.named(found.frames)),
        traceback=found.traceback,
        evidence=[it for each in found.evidence for it in _evidence(run, each)],
        folded=Folded(len(failures), len(ends)),
        continued=continued,
        next="" if continued else _next(run, found.kind, _changed(run, found.kind, own, edit, found.said)),
        edit=edit,
    )


def newest_cause(run: RunDirectory) -> Cause | None:
    """Why the newest start of the run ended; None of one that is done, or that may still be running."""
    nonce = run.newest_nonce()
    if nonce is not None and (start := _start(run, nonce)) is not None:
        return start
    number = run.newest_attempt()
    return None if number is None else cause_of(run, number)


# ── what it is told with ──────────────────────────────────────────────────────────────────────────────────────────────
def _evidence(run: RunDirectory, at: Told | Fault | JobEnded) -> Iterator[Evidence]:
    if isinstance(at, JobEnded):
        yield Evidence(_name(run, Path(at.path)), 0, at.cause.replace("_", " "))
        if at.state:
            yield Evidence(_name(run, Path(at.account)), 0, plain(at.state))
        return
    text = at.text.partition("\n")[0] if isinstance(at, Fault) else str(msgspec.to_builtins(at.event)["event"])
    yield Evidence(_name(run, at.path), line_at(at.path, at.offset), plain(text))


def _name(run: RunDirectory, path: Path) -> str:
    return str(path.relative_to(run.root))


def _next(run: RunDirectory, kind: Kind, changed: Sequence[str] = ()) -> str:
    verdict = VERDICTS[kind]
    return verdict.next.format(run=plain(str(run.root)), changed=plain(" ".join(changed)) or verdict.changed)


def _changed(run: RunDirectory, kind: Kind, own: OwnCode, edit: OwnLine | None, said: str) -> list[str]:
    """The settings of what is to be accepted once it is corrected."""
    if kind == "user's code":
        return own.settings(edit, said)
    return named_in(said, run.read_run().inputs) if kind == "data" else []


def _starts(run: RunDirectory) -> Iterable[Cause]:
    """Of starts that came to no attempt, the newest first."""
    for submission in reversed(run.submissions()):
        cause = _start(run, submission.nonce)
        if cause is not None:
            yield cause


def _start(run: RunDirectory, nonce: str) -> Cause | None:
    """Of a submission that came to no attempt, by its master's word or, where it never came to one, by its job's."""
    verdict = run.verdict_of(nonce)
    if verdict is not None:
        return _early(run, verdict) if verdict.attempt is None and verdict.state != "done" else None
    job = _first_job(run, nonce)
    return None if job is None else _never_begun(run, nonce, job)


def _early(run: RunDirectory, verdict: Verdict) -> Cause:
    """Of a start that came to no attempt."""
    kind = NATURES.get(verdict.nature) or CODES.get(verdict.exit_code) or by_words(verdict.reason) or "node failure"
    told = verdict.traceback or ""
    own = OwnCode(run)
    text = plain(own.named(verdict.reason)), verdict.time, own.named(users_lines(told)), told
    edit = own.line(verdict.reason, told) if kind == "user's code" else None
    who = verdict.worker or MASTER
    command = _next(run, kind, _changed(run, kind, own, edit, verdict.reason))
    return Cause(None, kind, kind, "certain", who, "starting", *text, [], Folded(), False, command, edit)


def _first_job(run: RunDirectory, nonce: str) -> JobEnded | None:
    """The last end of a batch system's job that was to have the master, where none has begun an attempt."""
    if run.newest_attempt_of(nonce) is not None:
        return None
    jobs = [job for job in ended_jobs(run, nonce) if job.place in MASTERS]
    return jobs[-1] if jobs else None


def _never_begun(run: RunDirectory, nonce: str, job: JobEnded) -> Cause | None:
    """What a job printed last that ended before its master could say a word."""
    kind = kind_of(job)
    if kind is None:
        return None
    printed = run.submitit_folder(nonce) / f"{job.place}-{job.number}.out"
    lines, _ = last_lines(printed, LAST_BYTES)
    said = "\n".join([f"The job ended before the run had begun: {job.cause.replace('_', ' ')}", *lines[-LAST_LINES:]])
    evidence = [*_evidence(run, job), *([_last_line(run, printed, lines[-1])] if lines else [])]
    at = MASTER, "starting", plain(said), job.when, "", ""
    return Cause(None, kind, kind, "likely", *at, evidence, Folded(), False, _next(run, kind))


def _last_line(run: RunDirectory, path: Path, line: str) -> Evidence:
    return Evidence(_name(run, path), line_at(path, path.stat().st_size) - 1, plain(line))


def _is_queued(run: RunDirectory, nonce: str) -> bool:
    """Whether its jobs are a batch system's: processes of a machine are known by numbers."""
    jobs = (job for submission in run.submissions() if submission.nonce == nonce for job in submission.jobs.values())
    return any(isinstance(job, str) for job in jobs)


def _waiting(run: RunDirectory, numbers: Sequence[int]) -> Cause | None:
    """Of a run on Slurm whose jobs are to come, by what its directory says; whether they do, the queue alone knows."""
    nonce = run.newest_nonce()
    if nonce is None or not _is_queued(run, nonce):
        return None
    verdict = run.verdict_of(nonce)
    if verdict is None and numbers and run.newest_attempt_of(nonce) is not None:
        return None
    if verdict is not None and verdict.exit_code not in (ExitCode.REQUEUE, ExitCode.PREEMPTED):
        return None
    job = None if verdict is not None else _first_job(run, nonce)
    if job is not None and job.cause in NOT_QUEUED_AGAIN:
        return None
    last = "no process has begun yet" if verdict is None else f"the last attempt was {verdict.state}: {verdict.reason}"
    kind: Kind = "waiting for Slurm"
    at = "", "", plain(f"Its jobs are to be started: {last}"), None, "", ""
    return Cause(None, kind, kind, "likely", *at, [], Folded(), False, _next(run, kind))
