"""How many nodes a run has that takes what it can get of a range: how that has changed, and what becomes of the others.

Numbers come from plans and from the events with which attempts begin; what the others wait for is told when it changes.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.event_log import Entry, decode
from hpcrl.events import AgentConnected, GrowthWeighed, NodeLeaving, NodesChanged, NodesMissing, WorkersReady
from hpcrl.inspect.entries import EntryTail
from hpcrl.inspect.lines import backwards
from hpcrl.inspect.reader import RunReader

OLDEST = 3
"""Attempts that are looked through for what is told of nodes that have not come."""


class NodesNow(msgspec.Struct, frozen=True):
    """Of a run whose number of nodes is a range, or that waits for some."""

    asked: str
    """`2-8`."""
    nodes: int
    """Those that its newest plan has; 0 before there is one."""
    changes: tuple[str, ...]
    """Each in words, the newest last."""
    others: tuple[str, ...]
    """What becomes of nodes that it does not have."""
    until: float | None = None
    """How long it waits for them before it does anything, in seconds since 1970."""
    queued: bool = False
    """It has ended to be queued again: it has none."""


def in_words(changed: NodesChanged) -> str:
    verb = "grew" if changed.nodes > changed.before else "shrank"
    nodes = "1 node" if changed.nodes == 1 else f"{changed.nodes} nodes"
    return f"{verb} from {changed.before} to {nodes} at step {changed.step}: {changed.why}"


def change_at(run: RunDirectory, attempt: int) -> NodesChanged | None:
    """How an attempt differs from the one before it."""
    for entry in EntryTail(run.events(attempt)).each():
        if isinstance(entry.event, NodesChanged):
            return entry.event
        if isinstance(entry.event, WorkersReady):
            return None
    return None


def changes_of(reader: RunReader) -> tuple[str, ...]:
    """All of them, in words."""
    found = (change_at(reader.run, attempt) for attempt in sorted(reader.attempts))
    return tuple(in_words(changed) for changed in found if changed is not None)


def nodes_now(reader: RunReader, asked: int | str) -> NodesNow | None:
    """None of a run whose number of nodes is fixed, while it waits for none."""
    least, _, most = str(asked).partition("-")
    newest = max(reader.attempts, default=None)
    nodes = 0 if newest is None else reader.attempts[newest].nodes
    is_fixed = not most or least == most
    if is_fixed and (reader.newest is None or reader.newest.ready is not None):
        return None  # without a look at its events, which may be many
    others = () if newest is None or _is_over(reader.run, newest) else tuple(_others(reader.run, newest))
    until = _waited_for_until(reader.run, newest) if newest is not None and others and not nodes else None
    if is_fixed and until is None:
        return None
    return NodesNow(
        f"{asked}", nodes, changes_of(reader), others, until, newest is not None and _is_queued(reader.run, newest)
    )


def _waited_for_until(run: RunDirectory, attempt: int) -> float | None:
    """As an attempt told that has not begun its work, nor ended."""
    if run.read_verdict(attempt) is not None:
        return None
    told = (entry.event for entry in _told(run, attempt) if isinstance(entry.event, NodesMissing))
    return next((event.until for event in told), None)


def _is_over(run: RunDirectory, newest: int) -> bool:
    """Whether nobody waits for nodes any more: the run has ended, and is not queued again."""
    return run.read_verdict(newest) is not None and not _is_queued(run, newest)


def _is_queued(run: RunDirectory, newest: int) -> bool:
    verdict = run.read_verdict(newest)
    return verdict is not None and verdict.exit_code == ExitCode.REQUEUE


def _others(run: RunDirectory, newest: int) -> Iterator[str]:
    """By what was told last: of nodes that are there, in the newest attempt; of those that are missing, in any."""
    seen, weighed, missing = set[int](), False, False
    for attempt in range(newest, max(-1, newest - OLDEST), -1):
        for entry in _told(run, attempt):
            event = entry.event
            if isinstance(event, NodeLeaving | AgentConnected):
                seen.add(event.node)
            elif isinstance(event, GrowthWeighed) and not weighed and attempt == newest:
                weighed = True
                spare = [node for node in event.spare if node not in seen]
                if spare:
                    yield _spare(spare, event, entry.time)
            elif isinstance(event, NodesMissing) and not missing:
                missing = True
                left = {node: what for node, what in event.nodes.items() if node not in seen}
                yield from (f"node {node} has not come: {what}" for node, what in sorted(left.items()))


def _spare(nodes: list[int], event: GrowthWeighed, time: float) -> str:
    one, at = len(nodes) == 1, _clock(time)
    who = f"node {nodes[0]} is here" if one else f"nodes {', '.join(map(str, nodes))} are here"
    does = ("joins" if one else "join") if event.joins else ("waits" if one else "wait")
    return f"{who} and {does}, as of {at}: {event.why}"


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S} UTC"


def _told(run: RunDirectory, attempt: int) -> Iterator[Entry]:
    """The events of an attempt that are about nodes, the newest first. Others are not decoded."""
    kinds = GrowthWeighed, NodesMissing, NodeLeaving, AgentConnected
    tags = [f'"event":"{kind.__struct_config__.tag}"' for kind in kinds]
    for line in backwards(run.events(attempt)):
        if any(tag in line for tag in tags):
            try:
                yield decode(line)
            except msgspec.DecodeError:
                continue


def lines_of(now: NodesNow) -> Iterator[str]:
    """For people: how many there are, since when, and what the others wait for."""
    how = f"; {now.changes[-1]}" if now.changes else ""
    until = "" if now.until is None else f"; those that are missing are waited for until {_clock(now.until)}"
    asked = f"nodes    {now.asked} {'is' if now.asked == '1' else 'are'} asked for{until}"
    if now.queued and now.nodes:
        yield f"{asked}; the newest attempt had {now.nodes}{how}"
    else:
        yield f"nodes    on {now.nodes} of {now.asked} nodes{how}" if now.nodes else asked
    yield from (f"         {other}" for other in now.others)
