"""Life-cycle events: typed structs, producer above each. `event_log` has them in files.

Lines are read by people and by `inspect`. A line may be lost (a full disk), so nothing is ever decided by one. What is
noted of each call is no event but `hpcrl.progress`: it is added up, and never written."""

from typing import Literal

import msgspec

from hpcrl.member_events import (
    ClockMeasured,
    FinishHeard,
    LifeCycleEvent,
    MasterConnected,
    MasterLost,
    MemoryHeld,
    MessageLost,
    RolesLoaded,
    StacksShown,
    WorkersForked,
)


# ── the master: an attempt and its members ────────────────────────────────────────────────────────────────────────────
class AttemptBegun(LifeCycleEvent, frozen=True, tag="attempt"):
    """`recovered` says in words what older attempts left; `steps` is how many the run has if nothing ends it before."""

    number: int
    recovered: str
    paused: bool
    steps: int


class RowsLeftOut(LifeCycleEvent, frozen=True, tag="rows left out"):
    """A data set has rows that this run does not use: so many `rows`, `of` all."""

    notice: str
    source: str = "train"
    rows: int = 0
    of: int = 0


class AgentConnected(LifeCycleEvent, frozen=True, tag="node"):
    """`welcome`: the agent is its node's; else it was sent away."""

    node: int
    host: str
    pid: int
    welcome: bool


class NodesMissing(LifeCycleEvent, frozen=True, tag="missing"):
    """Node → what is known of it. `until`: how long they are waited for, in seconds since 1970; None where the run does
    without them."""

    nodes: dict[int, str]
    until: float | None = None


class AllocationEnds(LifeCycleEvent, frozen=True, tag="allocation"):
    """Node (-1: the whole run) → seconds since 1970 at which it is taken away."""

    ends: dict[int, float]


class AllocationSilent(LifeCycleEvent, frozen=True, tag="allocation silent"):
    """Whoever started the nodes gave no answer to a question; the run needs none."""

    asked: str
    error: str


class WorkerConnected(LifeCycleEvent, frozen=True, tag="worker"):
    """A worker of this attempt said hello."""

    rank: int
    pid: int


class WorkersReady(LifeCycleEvent, frozen=True, tag="ready"):
    """All so many workers have loaded their roles. `hardware`: what those with models compute on → how many; `speeds`:
    type → operations a second in a CPU's trial, the mean; `memory`: call → bytes expected of its fullest worker."""

    workers: int
    hardware: dict[str, int] = msgspec.field(default_factory=dict)
    speeds: dict[str, float] = msgspec.field(default_factory=dict)
    memory: dict[str, float] = msgspec.field(default_factory=dict)


class NodeLeaving(LifeCycleEvent, frozen=True, tag="node leaving"):
    """A node was told to go."""

    node: int
    why: str


class NodesChanged(LifeCycleEvent, frozen=True, tag="nodes changed"):
    """The attempt has another number of nodes than the one before it; `step`: the newest step that was closed then."""

    before: int
    nodes: int
    step: int
    why: str


class GrowthWeighed(LifeCycleEvent, frozen=True, tag="growth"):
    """What becomes of nodes that are there and have no place in the attempt: whether they join, or why not yet. Told
    when it changes."""

    spare: tuple[int, ...]
    joins: bool
    why: str


class CommandHeard(LifeCycleEvent, frozen=True, tag="command"):
    """The master obeys a command that lies in `control/`."""

    command: Literal["pause", "continue", "finish", "drain", "stop"]
    name: str


class CommandRefused(LifeCycleEvent, frozen=True, tag="command refused"):
    """A file in `control/` is no command."""

    name: str
    error: str


class DrainBegun(LifeCycleEvent, frozen=True, tag="draining"):
    """No more calls are sent; these units are still executed."""

    in_flight: list[str]


class AttemptEnded(LifeCycleEvent, frozen=True, tag="ending"):
    """How the master judges the end. `who` began it, where that is known: `worker-1`, `agent-0` or the master itself;
    `asked`: a user or the system wanted it; `nature` as of `errors.Nature`. Step, call and part: what `who`, or a
    worker on its node, had to execute then."""

    state: str
    reason: str
    exit_code: int = 0
    who: str = ""
    asked: bool = False
    nature: str = ""
    step: int | None = None
    call: str = ""
    part: int = 0


# ── the master: steps ─────────────────────────────────────────────────────────────────────────────────────────────────
class StepOpened(LifeCycleEvent, frozen=True, tag="opened"):
    """Its units may be sent from now on."""

    step: int
    epoch: int
    samples: int


class StepExtended(LifeCycleEvent, frozen=True, tag="extended"):
    """A step that chooses has drawn so many samples more, in this round."""

    step: int
    round: int
    samples: int


class StepChosen(LifeCycleEvent, frozen=True, tag="chosen"):
    """A step has chosen the samples that it trains on, and dropped so many groups that it had drawn."""

    step: int
    samples: int
    dropped: int


class CallStalled(LifeCycleEvent, frozen=True, tag="stalled"):
    """A part of a call takes far longer than those before it; the longest of these took `longest_s`. `culprits` are the
    workers that it waits for, `why` what is known of them; `executing` those of them that are at it, and not at another
    call that they have to end first. Their stacks follow in their logs. Of a run's script, which has asked for nothing
    and waited for nothing, `stack` is where it is; it is the call `script`."""

    step: int
    call: str
    part: int
    ranks: tuple[int, ...]
    seconds: float
    longest_s: float = 0.0
    culprits: tuple[int, ...] = ()
    why: str = ""
    doing: dict[int, str] = msgspec.field(default_factory=dict)
    executing: tuple[int, ...] = ()
    stack: str = ""


class CallWentOn(LifeCycleEvent, frozen=True, tag="went on"):
    """A part of a call that had stalled was executed after all, so long after it was sent."""

    step: int
    call: str
    part: int
    seconds: float


class ReplayDrifted(LifeCycleEvent, frozen=True, tag="replay_drift"):
    """A replayed train_step gave other bits; `unlike` names a statistic that is no longer the same, if one is."""

    step: int
    role: str
    digest: str
    recorded: str
    why: str
    unlike: str


class NotDeterministic(LifeCycleEvent, frozen=True, tag="not deterministic"):
    """An operation of a train_step has no deterministic variant: replays are equal up to rounding."""

    step: int
    call: str
    operation: str


class NumericsChanged(LifeCycleEvent, frozen=True, tag="numerics changed"):
    """A train_step or blend is computed over other workers, software or kernels than the newest one of an older attempt
    was: from here on numbers are those of an undisturbed run up to rounding."""

    step: int
    call: str
    was: str
    now: str


class StepClosed(LifeCycleEvent, frozen=True, tag="closed"):
    """All of its calls are in the journal. `seconds` since this attempt opened it; `samples` that were drawn for it,
    whichever attempt did so."""

    step: int
    seconds: float
    samples: int = 0


class StopNeverHolds(LifeCycleEvent, frozen=True, tag="stop_when cannot hold"):
    """The step has reported no such metric as control.stop_when asks for."""

    step: int
    lacking: str
    reported: list[str]


class StateGrows(LifeCycleEvent, frozen=True, tag="run.state grows"):
    """The step left a script's run.state larger than half of what it may be: a script that exceeds that fails."""

    step: int
    bytes: int
    most: int


class StepCheckpointed(LifeCycleEvent, frozen=True, tag="checkpointed"):
    """The checkpoint of a step is whole and named."""

    step: int
    bytes: int


class CheckpointDamaged(LifeCycleEvent, frozen=True, tag="damaged"):
    """Workers found that a checkpoint is not what was saved: it counts no more."""

    step: int
    what: str


class RoleExported(LifeCycleEvent, frozen=True, tag="exported"):
    """The export of a role is whole."""

    step: int
    role: str
    path: str


# ── the master, an agent or a worker ──────────────────────────────────────────────────────────────────────────────────
class WorkerEnded(LifeCycleEvent, frozen=True, tag="worker ended"):
    """A worker's process ended, by itself or, as its agent alone tells, because it was `ordered`. `phase` is what it
    did last, by its beats; step, call and part what it had to execute, as its master knows; `out_of_memory`: the kernel
    has killed for want of it meanwhile."""

    rank: int
    attempt: int
    how: str
    log: str = ""
    exit_code: int | None = None
    signal: str = ""
    out_of_memory: bool = False
    phase: str = ""
    ordered: bool = False
    step: int | None = None
    call: str = ""
    part: int = 0


class CallFailed(LifeCycleEvent, frozen=True, tag="failed"):
    """Code on a worker raised. The worker writes its line before it tells anybody, and it alone has the `traceback`,
    whole, and the `frames` of the user's files in it. `of_peer`: what raised tells of a peer or of the way to it, not
    of this worker; `nature` as of `errors.Nature`."""

    rank: int
    what: str
    error: str
    traceback: str = ""
    of_peer: bool = False
    exit_code: int = 0
    nature: str = ""
    frames: str = ""


Event = (
    AttemptBegun
    | RowsLeftOut
    | AgentConnected
    | NodesMissing
    | AllocationEnds
    | AllocationSilent
    | WorkerConnected
    | WorkersReady
    | NodeLeaving
    | NodesChanged
    | GrowthWeighed
    | CommandHeard
    | CommandRefused
    | DrainBegun
    | AttemptEnded
    | StepOpened
    | StepExtended
    | StepChosen
    | CallStalled
    | CallWentOn
    | ReplayDrifted
    | NotDeterministic
    | NumericsChanged
    | StepClosed
    | StopNeverHolds
    | StateGrows
    | StepCheckpointed
    | CheckpointDamaged
    | RoleExported
    | WorkerEnded
    | CallFailed
    | MasterConnected
    | ClockMeasured
    | MessageLost
    | MasterLost
    | FinishHeard
    | StacksShown
    | WorkersForked
    | RolesLoaded
    | MemoryHeld
)
