"""Life-cycle events that agents and workers alone write; `events` has those of the master, and all together."""

import msgspec


class LifeCycleEvent(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    """`tag` is the line's name; a field that has its default value is left out of the line."""


# ── an agent ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class MasterConnected(LifeCycleEvent, frozen=True, tag="connected"):
    """The agent serves the master at this address."""

    master: str


class ClockMeasured(LifeCycleEvent, frozen=True, tag="clock"):
    """`mono` of this node's lines is ahead of the master's by so much, up to the error, until another line says
    otherwise; `ahead_s` is the same of the wall clocks, which may be set."""

    offset_s: float
    error_s: float
    ahead_s: float


class MessageLost(LifeCycleEvent, frozen=True, tag="message lost"):
    """A sender's numbers have a gap: the agent leaves its master."""

    sender: str


class MasterLost(LifeCycleEvent, frozen=True, tag="master lost"):
    """Nothing was heard of the master for this long."""

    silent_s: float


class FinishHeard(LifeCycleEvent, frozen=True, tag="finish"):
    """The master said that it is over."""

    exit_code: int


class StacksShown(LifeCycleEvent, frozen=True, tag="stacks"):
    """Workers, and what they have started, are asked to write their stacks to these files, by rank."""

    attempt: int
    files: dict[int, str]


class WorkersForked(LifeCycleEvent, frozen=True, tag="forked"):
    """Device by rank, as the worker sees it; `uuids` of the node's GPUs by slot; process ids of `servers` by name."""

    attempt: int
    ranks: tuple[int, ...]
    devices: list[str]
    uuids: list[str]
    servers: dict[str, int] = {}


# ── a worker ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class RolesLoaded(LifeCycleEvent, frozen=True, tag="loaded"):
    """Role → the kernels of attention that its model computes with here, of all that have a model."""

    attention: dict[str, str]
    seconds: float


class MemoryHeld(LifeCycleEvent, frozen=True, tag="held"):
    """Role and kind → bytes on this worker's device before, in and after a call; `seconds`: what letting go took. Of a
    call that holds what it held the last time there is no line."""

    step: int
    call: str
    part: int
    bytes: dict[str, tuple[int, int, int]]
    seconds: float
