"""What began the end of an attempt, and who: from what its processes wrote last, to one verdict. Pure, but for asking
whether a master of this host is alive.

The master's own word comes first: it alone knows in which order it learned of things. Where it died without one, the
workers' and agents' files are asked, then what Slurm's jobs left.
"""

import math
import re
import socket

import msgspec

from hpcrl.errors import ExitCode
from hpcrl.events import (
    AgentConnected,
    AllocationEnds,
    AttemptEnded,
    CallFailed,
    CallStalled,
    CallWentOn,
    Event,
    WorkerEnded,
)
from hpcrl.inspect.alive import boot_id, disk_trouble, is_running
from hpcrl.inspect.job_ends import CODES, kind_of, kind_of_state
from hpcrl.inspect.reader import AttemptReader
from hpcrl.inspect.trail import MASTER, Fault, JobEnded, Told, Trail
from hpcrl.inspect.verdicts import Confidence, Kind
from hpcrl.member_events import MasterLost
from hpcrl.stacks import frame_of, newest
from hpcrl.stacks import where as where_of

NATURES: dict[str, Kind] = {
    "GPU memory": "GPU memory",
    "host memory": "host memory",
    "disk": "disk",
    "communication": "communication",
}
WARNED_EARLY_S = 90.0
"""Slurm warns of a time limit up to a minute before it is asked to; and a call that is under way is finished first."""
NAMED = 3
"""Of what was under way when a master left no word, so much is named."""
CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
WORDS: tuple[tuple[str, Kind], ...] = (
    ("out of memory: the kernel has killed", "host memory"),
    ("the parent of its workers died", "node failure"),
    ("allocation ends soon", "time limit"),
    (" was cancelled", "cancelled"),
    ("could not connect", "communication"),
    ("no progress in starting", "hang"),
    ("got lost while it reconnected", "communication"),
    (" is damaged", "disk"),
)
"""What reasons say that have no type of their own."""
LEAVING = re.compile(r"node (\d+) is to go")


class Found(msgspec.Struct):
    """What is known of an end before it is told."""

    kind: Kind
    confidence: Confidence
    who: str = ""
    where: str = ""
    said: str = ""
    frames: str = ""
    traceback: str = ""
    evidence: tuple[Told | Fault | JobEnded, ...] = ()


def initiator(trail: Trail) -> Found | None:
    """None of an attempt that is done, or that may still be running."""
    ending = _ending(trail)
    if ending is None:
        return _without_ending(trail)
    event = ending.event if isinstance(ending, Told) else ending
    assert isinstance(event, AttemptEnded)
    line: tuple[Told, ...] = (ending,) if isinstance(ending, Told) else ()
    match event.state:
        case "done":
            return None
        case "lost" if not event.asked:
            return _lost(trail, event, line)
        case "failed":
            return _failed(trail, event, line)
    return _told_to_go(trail, event, line)


def _ending(trail: Trail) -> Told | AttemptEnded | None:
    """The master's word; in its place the verdict, where its events found no room."""
    found = [told for told in trail.of(MASTER) if isinstance(told.event, AttemptEnded)]
    if found:
        return found[-1]
    if trail.verdict is None:
        return None
    it = trail.verdict
    return AttemptEnded(it.state, it.reason, it.exit_code, it.worker or "", nature=it.nature)


def _lost(trail: Trail, ending: AttemptEnded, line: tuple[Told, ...]) -> Found:
    """A member that is gone, or something between members that broke."""
    end = _end_of(trail, ending.who)
    if end is not None:
        return _ended(trail, ending, end, line)
    if ending.nature:
        return _failed(trail, ending, line)
    if kind := by_words(ending.reason):
        return Found(kind, "likely", ending.who, "", ending.reason, evidence=line)
    if ending.who.startswith("worker-"):
        where = f"{_call_of(ending)} on {ending.who}" if ending.call else "starting"
        said = f"{ending.reason}. Its agent does not say that it has ended."
        return Found("hang", "likely", ending.who, where, said, evidence=line)
    if found := _by_job(trail, ending.who, ending, line):
        return found
    return Found("node failure", "likely", ending.who, _call_of(ending), ending.reason, evidence=line)


def _ended(trail: Trail, ending: AttemptEnded, end: Told, line: tuple[Told, ...]) -> Found:
    """A worker whose process has ended."""
    event = end.event
    assert isinstance(event, WorkerEnded)
    fault = next((it for it in trail.faults if it.process == ending.who), None)
    where = event.phase if event.phase not in ("", "idle") else _call_of(event) or _call_of(ending) or "starting"
    said = f"{ending.who} was {event.how}" if event.signal else f"{ending.who} ended with {event.how}"
    evidence: tuple[Told | Fault | JobEnded, ...] = (end, *line)
    if event.out_of_memory:
        return Found("host memory", "certain", ending.who, where, said, evidence=evidence)
    if event.signal in CRASHES or fault is not None:
        stacks = "" if fault is None else fault.text
        frames = users_lines(stacks)
        kind: Kind = "user's code" if frames else "internal"
        evidence = (end, *((fault,) if fault else ()), *line)
        return Found(kind, "certain" if fault else "likely", ending.who, where, said, frames, stacks, evidence)
    if found := _by_job(trail, ending.who, ending, line):
        return found
    if event.signal:
        said += ". Nobody in the run did it, and it was not for want of memory."
        return Found("node failure", "likely", ending.who, where, said, evidence=evidence)
    kind = CODES.get(event.exit_code or 0, "disk" if event.exit_code == ExitCode.REQUEUE else "internal")
    return Found(kind, "likely", ending.who, where, ending.reason, evidence=evidence)


def _failed(trail: Trail, ending: AttemptEnded, line: tuple[Told, ...]) -> Found:
    """Something raised: on a worker, whose own line says most, or in the master."""
    first = _raised(trail, ending.who)
    kind = NATURES.get(ending.nature) or CODES.get(ending.exit_code) or by_words(ending.reason)
    if kind is None and first is None and (found := _by_node(trail, ending, line)):
        return found
    kind = kind or "node failure"
    confidence: Confidence = "certain" if ending.nature or ending.exit_code in CODES else "likely"
    whole = "" if trail.verdict is None else trail.verdict.traceback or ""
    if first is None:
        return Found(kind, confidence, ending.who, "", ending.reason, users_lines(whole), whole, line)
    event = first.event
    assert isinstance(event, CallFailed)
    frames = "" if event.frames and event.frames.strip() in event.error else event.frames
    if kind == "internal" and event.frames:
        kind, confidence = "user's code", "likely"
    said = event.error
    if not ending.who and (others := _as_early(trail, first)):
        said, confidence = f"{said}\n{others}", "likely"
    told = said, frames, event.traceback or whole
    return Found(kind, confidence, process_of(event), event.what, *told, (first, *line))


def _told_to_go(trail: Trail, ending: AttemptEnded, line: tuple[Told, ...]) -> Found:
    """Somebody wanted it to end, or its nodes did not come."""
    evidence: tuple[Told | Fault | JobEnded, ...] = line
    if ending.state in ("stopped", "superseded"):
        return Found("cancelled", "certain", "", "", ending.reason, evidence=evidence)
    if ending.state == "grown":
        return Found("more nodes", "certain", "", "", ending.reason, evidence=evidence)
    if ending.state == "changed":
        return Found("changed script", "certain", "", "", ending.reason, evidence=evidence)
    if ending.state == "queued":
        return Found("waiting for Slurm", "certain", "", "", ending.reason, evidence=evidence)
    said = by_words(ending.reason)
    leaving = LEAVING.search(ending.reason)
    who = f"agent-{leaving[1]}" if leaving else MASTER
    job = _job_of(trail, who)
    if said is None and job is not None and (kind := _by_slurm(trail, job)):
        who = who if kind in ("node failure", "host memory") else ""
        return Found(kind, "likely", who, "", ending.reason, evidence=(*line, job))
    if said is None and line and "SIGUSR" in ending.reason and (ends := _ends_soon(trail, line[0].entry.time)):
        return Found("time limit", "likely", "", "", ending.reason, evidence=(*line, ends))
    if said == "node failure":
        return Found(said, "likely", who, "", ending.reason, evidence=evidence)
    if ending.state == "incomplete":
        kind = said or "node failure"
        return Found(kind, "likely", "", "starting" if kind == "hang" else "", ending.reason, evidence=evidence)
    return Found(said or "preempted", "certain", "", "", ending.reason, evidence=evidence)


def _ends_soon(trail: Trail, time: float) -> Told | None:
    """The line that says when the allocation ends, if that is when Slurm warns of it by a signal."""
    told = [it for it in trail.of(MASTER) if isinstance(it.event, AllocationEnds) and it.entry.time <= time]
    if not told or trail.claim is None:
        return None
    event = told[-1].event
    assert isinstance(event, AllocationEnds)
    sections = trail.run.configuration(trail.claim.submission)["cluster"].values()
    lead_s = max(it.get("signal_lead_s", 0) for it in sections if isinstance(it, dict))
    return told[-1] if min(event.ends.values(), default=float("inf")) - time <= lead_s + WARNED_EARLY_S else None


def _by_slurm(trail: Trail, job: JobEnded) -> Kind | None:
    """What Slurm did to a job whose process was told to go; None where it was no more than that."""
    word = kind_of_state(job)
    if word is None and job.cause == "left_to_slurm":
        return None if trail.requeued else "cancelled"
    told = word is not None or job.cause in ("node_failure", "out_of_memory", "time_limit", "cancelled")
    kind = kind_of(job)
    return kind if told and kind != "preempted" else None


def _without_ending(trail: Trail) -> Found | None:
    """Of an attempt whose master left no word: it runs, or was killed."""
    if not _master_is_gone(trail):
        return _stalled(trail)
    lost = [told for told in trail.told if isinstance(told.event, MasterLost)]
    raised = [told for told in trail.told if _raises(told.event) and not (lost and _is_after(told, lost[0]))]
    if raised:
        event = raised[0].event
        assert isinstance(event, CallFailed)
        kind = NATURES.get(event.nature) or CODES.get(event.exit_code, "internal")
        said = "\n".join(filter(None, (event.error, _as_early(trail, raised[0]))))
        at = f"worker-{event.rank}", event.what, said, event.frames, event.traceback, (raised[0],)
        return Found(kind, "likely", *at)
    claim = trail.claim
    gone = "The master" if claim is None else f"The master (process {claim.pid} on {claim.host})"
    said = f"{gone} is gone and left no word{_at_last(trail)}"
    if found := _by_job(trail, MASTER, AttemptEnded("lost", said, who=MASTER), tuple(lost[:1])):
        return found
    if trouble := disk_trouble(trail.run.root):
        return Found("disk", "likely", MASTER, "", f"{said}; {trouble}.", evidence=tuple(lost[:1]))
    if claim is not None and claim.host == socket.gethostname() and claim.boot_id != boot_id():
        return Found("node failure", "certain", MASTER, "", f"{said}: {claim.host} was started anew since.")
    return Found("node failure", "likely", MASTER, "", f"{said}: it was killed.", evidence=tuple(lost[:1]))


def _at_last(trail: Trail) -> str:
    """What was under way when it was last known, to a second: `, with gen of step 3 under way on workers 0, 1`."""
    attempt = AttemptReader(trail.run, trail.number)
    attempt.update()
    units = attempt.activity.under_way
    if not units:
        return ""
    named = [
        f"{it} under way on worker{'s' * (len(it.ranks) > 1)} {', '.join(map(str, it.ranks))}"
        for it in sorted(units, key=lambda it: (not it.executing, it.since))[:NAMED]
    ]
    more = f" and {len(units) - NAMED} more" if len(units) > NAMED else ""
    return f", with {'; '.join(named)}{more}"


def _stalled(trail: Trail) -> Found | None:
    """Of an attempt that runs: the call that takes far too long, as its master told last."""
    stalled: dict[tuple[int, str, int], tuple[Told, CallStalled]] = {}
    for it in trail.of(MASTER):
        if isinstance(it.event, CallStalled):
            stalled[it.event.step, it.event.call, it.event.part] = it, it.event
        elif isinstance(it.event, CallWentOn):
            stalled.pop((it.event.step, it.event.call, it.event.part), None)
    if not stalled:
        return None
    # Of several the one that a culprit executes: others wait for their turn. Else what was told last.
    told, event = max(stalled.values(), key=lambda it: (bool(it[1].executing), it[0].offset))
    culprits = event.culprits or event.ranks
    who = f"worker-{culprits[0]}" if culprits else ""
    where = f"{event.call} of step {event.step}"
    said = f"{where} has taken {event.seconds:.0f} s: {event.why or 'nobody says for what it waits'}"
    frames = [event.stack] if event.stack else [seen for rank in culprits if (seen := _seen_at(trail, rank))]
    confidence: Confidence = "certain" if event.culprits else "likely"
    return Found("hang", confidence, who, where, said, "\n".join(frames), evidence=(told,))


def _seen_at(trail: Trail, rank: int) -> str:
    """Where a worker is, by its newest stacks."""
    at = where_of(newest(trail.run.stacks(trail.number, f"worker-{rank}")))
    return "" if at is None else f"worker-{rank} is at {at}"


def _master_is_gone(trail: Trail) -> bool:
    """As far as it can be seen from here. A newer attempt, or agents that missed it, say so too."""
    claim = trail.claim
    if claim is not None and claim.host == socket.gethostname():
        return not is_running(claim)
    newer = trail.number + 1 in trail.run.numbers()
    return newer or any(isinstance(told.event, MasterLost) for told in trail.told)


# ── who, and what Slurm says ──────────────────────────────────────────────────────────────────────────────────────────
def _end_of(trail: Trail, who: str) -> Told | None:
    """The end of a worker that nobody had ordered; the master's line, which names the phase, before its agent's."""
    ends = [
        told
        for told in trail.told
        if isinstance(told.event, WorkerEnded) and process_of(told.event) == who and not told.event.ordered
    ]
    return next((told for told in ends if told.process == MASTER), ends[0] if ends else None)


def _raised(trail: Trail, who: str) -> Told | None:
    """The first failure that a worker tells of itself: its own line, before the master's. Without a name, anybody's."""
    told = [it for it in trail.told if isinstance(it.event, CallFailed) and (process_of(it.event) == who or not who)]
    own = [it for it in told if isinstance(it.event, CallFailed) and not it.event.of_peer] or told
    return next((it for it in own if it.process == process_of(it.event)), own[0] if own else None)


def _raises(event: Event) -> bool:
    """Whether it tells of an error of a worker itself, not of a peer of it."""
    return isinstance(event, CallFailed) and not event.of_peer


def _is_after(one: Told, other: Told) -> bool:
    """For sure, by the clocks of both."""
    return one.entry.time - other.entry.time > one.apart_s(other)


def _as_early(trail: Trail, first: Told) -> str:
    """In words, who else raised an error of its own so shortly after the first that the clocks do not say who began."""
    own = [told for told in trail.told if _raises(told.event) and process_of(told.event) == told.process]
    others = {told.process: told for told in own if told.process != process_of(first.event)}
    near = {name: told for name, told in others.items() if told.node != first.node and not _is_after(told, first)}
    if not near:
        return ""
    error_s = max(told.apart_s(first) for told in near.values())
    names, raised = ", ".join(near), "raised an error of its own" if len(near) == 1 else "raised errors of their own"
    if error_s == math.inf:
        return f"Which was first is not known: {names} {raised}, and nobody has compared the clocks of these nodes."
    within = f"within the clocks' error, {max(1, round(1000 * error_s))} ms"
    return f"Which was first is not known: {names} {raised} {within}."


def _call_of(event: AttemptEnded | WorkerEnded) -> str:
    return f"{event.call} of step {event.step}" if event.call else ""


def process_of(event: Event) -> str:
    return f"worker-{event.rank}" if isinstance(event, CallFailed | WorkerEnded) else ""


def _job_of(trail: Trail, who: str) -> JobEnded | None:
    """The end of the job in which a process was, if it ended in this attempt."""
    kind, _, number = who.partition("-")
    places = ("master", "run") if kind == MASTER else ("run", f"workers-{number}") if kind == "agent" else ("run",)
    since = max((it.entry.time for it in trail.of(MASTER) if _welcomes(it.event, who)), default=0.0)
    return next((job for job in trail.jobs if job.place in places and job.when >= since), None)


def _welcomes(event: Event, agent: str) -> bool:
    """An element's job that ended before its agent came to this attempt was an older start's."""
    return isinstance(event, AgentConnected) and event.welcome and f"agent-{event.node}" == agent


def _by_job(trail: Trail, who: str, ending: AttemptEnded, line: tuple[Told, ...]) -> Found | None:
    job = _job_of(trail, who)
    kind = None if job is None else kind_of(job)
    if job is None or kind is None:
        return None
    said = f"{ending.reason}; its job ended: {job.cause.replace('_', ' ')}"
    return Found(kind, "likely", who, "", said, evidence=(*line, job))


def _by_node(trail: Trail, ending: AttemptEnded, line: tuple[Told, ...]) -> Found | None:
    """The job of a node that nobody starts again, and that the master has waited for."""
    for job in trail.jobs:
        kind, (name, _, node) = kind_of(job), job.place.partition("-")
        if name == "workers" and kind in ("configuration", "data", "user's code", "internal", "host memory"):
            return Found(kind, "likely", f"agent-{node}", "starting", ending.reason, evidence=(*line, job))
    return None


def by_words(reason: str) -> Kind | None:
    return next((kind for words, kind in WORDS if words in reason), None)


def users_lines(stacks: str) -> str:
    """The frames in files that are neither hpcrl's, nor Python's, nor installed."""
    lines = stacks.splitlines()
    return "\n".join(line for line in lines if (frame := frame_of(line)) is not None and frame.is_users)
