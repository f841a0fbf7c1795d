"""How a run's newest attempts went, by the last lines of their journals: what they finished, and what broke.

Journals are read from their ends, as far as is needed.
"""

from collections.abc import Iterator

import msgspec

from hpcrl.durable.journal import Broken, Checkpointed, Closed, Damaged, Done, Event, Stopped, Trained, decode_line
from hpcrl.durable.journals import lines_backwards
from hpcrl.durable.once import Returned, SetAside
from hpcrl.durable.rundir import RunDirectory

FINISHED = (Done, Returned, Trained, Closed, Checkpointed)
"""Lines that say that work was finished."""


def attempts_without_progress(run: RunDirectory, submission: str) -> int:
    """How many of the newest attempts, one after another, are of this submission and finished nothing.

    An attempt that ended in good order, as one for which no node came, is passed over, and one that found a checkpoint
    damaged, or set aside what a script had asked for: the next one does not try it again. So is one after which the run
    continued on fewer nodes, or more.
    """
    found, later = 0, None
    for number in _fruitless_attempts(run, submission):
        nodes = nodes_of(run, number)
        resized = later is not None and nodes is not None and len(later) != len(nodes)
        in_order = any(isinstance(event, Stopped | Damaged | SetAside) for event in _newest(run, number))
        found += not resized and not in_order
        later = nodes or later
    return found


def nodes_of(run: RunDirectory, attempt: int) -> tuple[int, ...] | None:
    """The nodes of an attempt by its plan; None where it has none, or a damaged one."""
    try:
        plan = msgspec.json.decode(run.files.read(run.plan(attempt)), type=_Planned)
    except (OSError, msgspec.DecodeError):
        return None
    return tuple(dict.fromkeys(worker.node for worker in plan.workers))


def newest_nodes(run: RunDirectory) -> tuple[int, ...] | None:
    """The nodes of the newest attempt that came to a plan."""
    return next((nodes for number in reversed(run.numbers()) if (nodes := nodes_of(run, number))), None)


def grown_at(run: RunDirectory) -> float | None:
    """When the newest attempt began that had more nodes than the one before it, in seconds since 1970; None where there
    is none. Attempts that came to no plan are passed over."""
    later: tuple[int, int] | None = None
    for number in reversed(run.numbers()):
        if (nodes := nodes_of(run, number)) is None:
            continue
        if later is not None and later[1] > len(nodes):
            claim = run.read_claim(later[0])
            return None if claim is None else claim.time
        later = number, len(nodes)
    return None


class _Seat(msgspec.Struct, frozen=True):
    node: int


class _Planned(msgspec.Struct, frozen=True):
    """Of a plan, where workers are."""

    workers: tuple[_Seat, ...]


def broken_operations(run: RunDirectory, submission: str) -> frozenset[Broken]:
    """What broke while everybody was alive, in the newest attempts of this submission, since anything was trained.
    (Other calls may be finished between two failures of a train_step.)"""
    found: set[Broken] = set()
    for number in reversed(run.numbers()):
        claim = run.read_claim(number)
        if claim is None or claim.submission != submission:
            break
        for event in _newest(run, number):
            if isinstance(event, Trained | Closed):
                return frozenset(found)
            if isinstance(event, Broken):
                found.add(event)
    return frozenset(found)


def failed_rendezvous(run: RunDirectory, submission: str) -> int:
    """How often, since something was finished, this submission's master has waited for nodes that did not come."""
    verdicts = map(run.read_verdict, _fruitless_attempts(run, submission))
    return sum(verdict is not None and verdict.state == "incomplete" for verdict in verdicts)


def progress_of(run: RunDirectory) -> str:
    """How far the run is: a text that changes with everything that is finished."""
    for number in reversed(run.numbers()):
        for end, line in lines_backwards(run, number):
            if isinstance(decode_line(line), FINISHED):
                return f"attempt {number}: {end}"
    return ""


def _fruitless_attempts(run: RunDirectory, submission: str) -> Iterator[int]:
    """The newest attempts of this submission, the newest first, back to the one that finished something."""
    for number in reversed(run.numbers()):
        claim = run.read_claim(number)
        if claim is None or claim.submission != submission:
            return
        if any(isinstance(event, FINISHED) for event in _newest(run, number)):
            return
        yield number


def _newest(run: RunDirectory, number: int) -> Iterator[Event | None]:
    """An attempt's events, the last first."""
    return (decode_line(line) for _, line in lines_backwards(run, number))
