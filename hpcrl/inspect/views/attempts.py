"""What each attempt came to, and where all of a run's time went.

Wall time is that of the run's submissions: from when each was sent to its last sign of life. When a run has ended and
nobody has resumed it, no time passes. Clocks of several machines meet here, so a moment is never before the one that
must precede it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec

from hpcrl.durable.records import Claim
from hpcrl.events import AgentConnected, WorkerConnected, WorkersReady
from hpcrl.inspect.entries import EntryTail
from hpcrl.inspect.reader import AttemptReader, RunReader
from hpcrl.inspect.views.why import cause_of

Interval = tuple[float, float]


class Attempt(msgspec.Struct, frozen=True):
    """`verdict` and `who` as `why` says them; empty of an attempt that is done, or runs."""

    attempt: int
    verdict: str
    who: str
    nodes: list[str]
    """Hosts that were seen."""
    first_step: int | None
    last_step: int | None
    """That it closed."""
    seconds: float
    lost_s: float
    """What it had begun and never finished, and what the next attempt replayed."""
    replayed: int
    """Train steps that the next attempt made again."""
    again: tuple[int, int] | None
    """The first and the last step of which it made train steps again that an older attempt had made."""
    settings: int
    """The version of the settings that it ran."""
    resumed_s: float | None
    """From its end until the next attempt began something new; None where none has."""


class Ledger(msgspec.Struct, frozen=True):
    """Seconds of wall time; all of them together are `wall`."""

    wall: float
    queue: float
    """Jobs waited for their turn."""
    hold: float
    """Nodes waited for others, or the run was paused."""
    rendezvous: float
    """Processes found each other; the master read what older attempts had left."""
    imports: float = msgspec.field(name="import")
    """Workers were made: what they import, and what they are made of."""
    load: float
    """Models were loaded."""
    useful: float
    """Some call was under way that nobody had made before."""
    recomputed: float
    """Nothing but what had been made before, or what was lost as the attempt ended."""
    idle: float
    """No call was under way."""


@dataclass(frozen=True)
class Course:
    """One attempt's moments in seconds since 1970, and what it did between, in seconds since it `began`."""

    number: int
    claim: Claim | None
    began: float
    first_node: float
    nodes: float
    connected: float | None
    """The last worker; None where it came to none."""
    ready: float | None
    end: float
    made: list[Interval]
    made_again: list[Interval]
    unfinished: list[Interval]
    paused: list[Interval]
    replayed: frozenset[int]
    """Steps."""
    first_new: float | None


@dataclass
class _Clock:
    """Gives each stretch of time to one account."""

    now: float
    spent: dict[str, float] = field(default_factory=dict)

    def advance(self, account: str, moment: float) -> None:
        seconds = max(0.0, moment - self.now)
        self.spent[account] = self.spent.get(account, 0.0) + seconds
        self.now += seconds


def attempts(reader: RunReader) -> list[Attempt]:
    courses = _courses(reader)
    found = []
    for course, later in zip_longest(courses, courses[1:]):
        cause = cause_of(reader.run, course.number)
        steps = [row.step for row in reader.attempts[course.number].costs()]
        begun = None if later is None or later.first_new is None else later.began + later.first_new
        lost_s = covered(course.unfinished) + (0.0 if later is None else covered(later.made_again))
        found.append(
            Attempt(
                attempt=course.number,
                verdict="" if cause is None else cause.verdict,
                who="" if cause is None else cause.who,
                nodes=sorted(set(reader.attempts[course.number].hosts.values())),
                first_step=min(steps, default=None),
                last_step=max(steps, default=None),
                seconds=round(course.end - course.began, 3),
                lost_s=round(lost_s, 3),
                replayed=0 if later is None else len(later.replayed),
                again=(min(course.replayed), max(course.replayed)) if course.replayed else None,
                settings=0 if course.claim is None else reader.run.version_of(course.claim.submission),
                resumed_s=None if begun is None else round(max(0.0, begun - course.end), 3),
            )
        )
    return found


def ledger(reader: RunReader) -> Ledger:
    sent = {each.nonce: each.time for each in reversed(reader.run.submissions())}
    queued = {each.nonce for each in reader.run.submissions() if any(isinstance(it, str) for it in each.jobs.values())}
    clock = _Clock(0.0)
    last: Course | None = None
    for course in _courses(reader):
        nonce = "" if course.claim is None else course.claim.submission
        claimed = course.began if course.claim is None else course.claim.time
        before = None if last is None else last.claim
        if before is None or before.submission != nonce:
            # The time when nobody wanted it to run is no time of the run.
            clock.now = max(clock.now, min(sent.get(nonce, claimed), claimed))
        is_same = before is not None and course.claim is not None and before.pid == course.claim.pid
        clock.advance("rendezvous" if is_same or nonce not in queued else "queue", claimed)
        _account(clock, course, nonce in queued)
        last = course
    spent = {name: round(seconds, 3) for name, seconds in clock.spent.items()}
    names = ("queue", "hold", "rendezvous", "imports", "load", "useful", "recomputed", "idle")
    accounts = {name: spent.get(name, 0.0) for name in names}
    return Ledger(wall=round(sum(accounts.values()), 3), **accounts)


def _account(clock: _Clock, course: Course, is_queued: bool) -> None:
    """One attempt, from its claim to its end."""
    clock.advance("rendezvous", course.began)
    clock.advance("queue" if is_queued else "rendezvous", min(course.first_node, course.end))
    clock.advance("hold", min(course.nodes, course.end))
    clock.advance("imports", course.end if course.connected is None else course.connected)
    clock.advance("load", course.end if course.ready is None else course.ready)
    if course.ready is None:
        return
    window = clock.now - course.began, course.end - course.began
    useful = covered(course.made, window)
    worked = covered([*course.made, *course.made_again, *course.unfinished], window)
    held = covered([*course.made, *course.made_again, *course.unfinished, *course.paused], window)
    for account, seconds in (("useful", useful), ("recomputed", worked - useful), ("hold", held - worked)):
        clock.advance(account, clock.now + seconds)
    clock.advance("idle", course.end)


def covered(intervals: Iterable[Interval], window: Interval = (0.0, float("inf"))) -> float:
    """Seconds that at least one of them covers, within the window."""
    total, until = 0.0, window[0]
    for begin, end in sorted(intervals):
        begin, end = max(begin, until), min(end, window[1])
        if end > begin:
            total, until = total + end - begin, end
    return total


# ── what an attempt did, and when ─────────────────────────────────────────────────────────────────────────────────────
def _courses(reader: RunReader) -> list[Course]:
    """Of all attempts that left events."""
    newest = max(reader.attempts, default=None)
    found = (_course(attempt, number == newest) for number, attempt in sorted(reader.attempts.items()))
    return [course for course in found if course is not None]


def _course(attempt: AttemptReader, is_newest: bool) -> Course | None:
    activity = attempt.activity
    if activity.began is None or activity.last is None:
        return None
    began, end = activity.began, max(activity.began, activity.last)
    nodes, workers, ready = _arrivals(attempt)
    # Agents that were there before say nothing again.
    expected = attempt.nodes or len(activity.nodes)
    first = min(nodes, default=end if ready is None else began) if len(nodes) >= expected else began
    over = bool(activity.ending) or not is_newest
    made_here = list(attempt.made())
    spans = [it.span for it in made_here]
    open_ = [(max(0.0, unit.since - began), end - began, unit.replay) for unit in activity.under_way]
    made = [(it.sent_s, it.ended_s) for it in spans if not it.replay]
    made += [] if over else [(since, until) for since, until, replay in open_ if not replay]
    pauses = [pause for row in attempt.costs() for pause in row.pauses] + activity.phases.pauses
    since = activity.phases.paused_since
    return Course(
        number=attempt.number,
        claim=attempt.run.read_claim(attempt.number),
        began=began,
        first_node=first,
        nodes=end if nodes and ready is None and not attempt.nodes else max(nodes, default=first),
        connected=max(workers, default=ready),
        ready=ready,
        end=end,
        made=made,
        made_again=[(it.sent_s, it.ended_s) for it in spans if it.replay],
        unfinished=[(since, until) for since, until, _ in open_] if over else [],
        paused=pauses + ([] if since is None else [(since, end - began)]),
        replayed=frozenset(it.step for it in made_here if it.span.replay or it.again),
        first_new=min((sent for sent, _ in made), default=None),
    )


def _arrivals(attempt: AttemptReader) -> tuple[list[float], list[float], float | None]:
    """When its nodes came, when its workers did, and when all were ready."""
    nodes, workers = [], []
    for entry in EntryTail(attempt.run.events(attempt.number)).each():
        match entry.event:
            case AgentConnected(welcome=True):
                nodes.append(entry.time)
            case WorkerConnected():
                workers.append(entry.time)
            case WorkersReady():
                return nodes, workers, entry.time
    return nodes, workers, None
