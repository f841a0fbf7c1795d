"""Everything that crosses a process of a run: typed structs, msgpack on the wire; producer → consumer above each.

Knows neither sockets nor what a message leads to. Arrays travel as raw frames beside a `Rows`, never inside a struct.
"""

from typing import Any, Literal

import msgspec

from hpcrl.data.samples import SampleMeta
from hpcrl.durable.checkpoints import SavedRole
from hpcrl.durable.files import FileRef
from hpcrl.errors import Nature
from hpcrl.figures import Figures
from hpcrl.whereabouts import BEFORE_LOOP, Doing
from hpcrl.wire.bundle import Bundle
from hpcrl.wire.chores import ChoreDone, ChoreFailed, KeepStep, RemoveParts
from hpcrl.wire.holders import RowSource
from hpcrl.wire.peer_messages import Fetch, Rows
from hpcrl.wire.script_messages import FromScript, ToScript


class Trouble(msgspec.Struct, frozen=True):
    """Why an agent cannot have workers, and the exit code that this means for the run."""

    error: str
    exit_code: int


# ── agent → master ────────────────────────────────────────────────────────────────────────────────────────────────────
class AgentHello(msgspec.Struct, frozen=True, tag=True):
    """The agent of a node is there; it owns `slots` worker slots.

    `incarnation` is (job id, restarts) of its Slurm job, (0, 0) elsewhere; of two agents of a node the later
    one counts. `devices` are the UUIDs of its workers' GPUs by slot; none where they compute on CPUs.
    """

    node: int
    host: str
    slots: int
    pid: int
    incarnation: tuple[int, int] = (0, 0)
    devices: tuple[str, ...] = ()
    trouble: Trouble | None = None


class WorkerExited(msgspec.Struct, frozen=True, tag=True):
    """A worker process ended without being asked to; `exit_code` is None where a signal ended it."""

    attempt: int
    rank: int
    how: str
    exit_code: int | None
    log: str
    signal: str = ""
    out_of_memory: bool = False


class NodeDraining(msgspec.Struct, frozen=True, tag=True):
    """The node was told to go (SIGTERM, SIGUSR1, SIGUSR2)."""

    node: int
    why: str


# ── worker → master ───────────────────────────────────────────────────────────────────────────────────────────────────
class WorkerHello(msgspec.Struct, frozen=True, tag=True):
    """A worker is connected: `address` serves rows to its peers, `prepared` is what its host tells the others.

    `hardware` is the model of what it computes on, `software` what its host computes with. One that has
    `failed` has no host, and says why next.
    """

    attempt: int
    rank: int
    pid: int
    address: str
    prepared: str
    hardware: str = ""
    software: str = ""
    failed: bool = False


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """All roles placed on this worker are loaded. `attention`: model → the kernels that compute it, as `Numerics`.

    `speeds`: type of numbers → operations a second that it reached in a trial; nothing of a GPU, whose peak is known.
    """

    rank: int
    seconds: float
    attention: dict[str, str] = {}
    speeds: dict[str, float] = {}


class Syn(msgspec.Struct, frozen=True, tag=True):
    """The inputs of a request are here; the worker waits for the go."""

    request: int
    rank: int


class Reply(msgspec.Struct, frozen=True, tag=True):
    """A call is executed; its outputs are in this worker's memory, what a train_step shows is on its way to disk."""

    request: int
    rank: int
    meta: SampleMeta | None
    stats: dict[str, tuple[float, ...]]
    record: dict[str, Any] | None
    seconds: float
    inexact: str = ""
    """An operation of a train_step that may give other bits every time, by name."""
    scores: tuple[float, ...] = ()
    """What steps choose by, of each sample in the request's order; NaN where it has none."""
    figures: Figures = Figures()
    """What it measured."""
    values: tuple[str, ...] = ()
    """What a method of JSON has returned for each of the request's samples; it leaves nothing else."""


class Moved(msgspec.Struct, frozen=True, tag=True):
    """A move is executed: the digests of the role's parameters at home and at the replica, each from the ranks that
    hold some of them there."""

    request: int
    rank: int
    home: str
    replica: str
    seconds: float


class Spilled(msgspec.Struct, frozen=True, tag=True):
    """The outputs of a request are durable in this file."""

    request: int
    rank: int
    spill: FileRef
    seconds: float


class ShardWritten(msgspec.Struct, frozen=True, tag=True):
    """This rank's shard of a role's state after `step` is on disk, in the folders that a `Save` asked for."""

    step: int
    role: str
    rank: int
    shard: FileRef
    seconds: float
    checkpoint: bool
    export: bool


class ShardsVerified(msgspec.Struct, frozen=True, tag=True):
    """The shards that a `Verify` named were read back; `damage` says how some are not what was published."""

    step: int
    rank: int
    damage: str = ""


class ExportWritten(msgspec.Struct, frozen=True, tag=True):
    """This rank has written its share of the files of a role's export after `step`; maybe none."""

    step: int
    role: str
    rank: int


class BrokenOperation(msgspec.Struct, frozen=True):
    """What a PeerLostError says besides its text."""

    group: tuple[int, ...]
    operation: str
    number: int
    rank: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Code on this worker raised; the attempt ends. `broken`: what raised tells of a peer, not of this worker."""

    rank: int
    what: str
    error: str
    traceback: str
    exit_code: int
    time: float
    broken: BrokenOperation | None = None
    damaged: str = ""
    """How a checkpoint is not what was saved, if that is what was found."""
    nature: Nature = ""


# ── any → master, master → any ────────────────────────────────────────────────────────────────────────────────────────
class BeatHeard(msgspec.Struct, frozen=True):
    """To an agent's beat: when that was `sent`, by its own clock, when the master `heard` it and `answered`, by the
    master's, and the master's wall clock then. The others are clocks that nobody sets."""

    sent: float
    heard: float
    answered: float
    wall: float


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Alive. Judged by its envelope's sequence number on the observer's own monotonic clock."""

    doing: Doing = Doing()
    work: int = 0
    """Changes while the process comes further with that, and says so in no other way (`processes.work_done`)."""
    sent: float = 0.0
    """Of an agent or the master: when, by its clock that nobody sets."""
    heard: BeatHeard | None = None
    """Of the master, to an agent: its newest beat. Measures how far their clocks are apart."""


# ── master → any, any → master ────────────────────────────────────────────────────────────────────────────────────────
class AreYouThere(msgspec.Struct, frozen=True, tag=True):
    """Answer at once: something that several workers do together broke in this attempt, and somebody may be gone."""

    attempt: int


class Here(msgspec.Struct, frozen=True, tag=True):
    """The answer, by the thread that talks: also of a worker that waits in a collective, not of one that is stopped."""

    attempt: int


# ── master → agent ────────────────────────────────────────────────────────────────────────────────────────────────────
class StartWorkers(msgspec.Struct, frozen=True, tag=True):
    """Kill every worker that you have, then fork these ranks for this attempt; none where it is over, or has no use
    for the node."""

    attempt: int
    ranks: tuple[int, ...]
    over: bool = False
    """Whether it is; what makes responses beside workers stays for the next."""


class WorkersConnected(msgspec.Struct, frozen=True, tag=True):
    """All workers of all nodes are, and tell by themselves how far their start is: agents no longer speak for them."""


class ShowStacks(msgspec.Struct, frozen=True, tag=True):
    """Have these workers of yours, and what they have started, write where their threads are; `why` goes above."""

    attempt: int
    ranks: tuple[int, ...]
    why: str


class Finish(msgspec.Struct, frozen=True, tag=True):
    """The run (this submission of it) is over; end with this code. To a worker: leave."""

    exit_code: int


# ── master → worker ───────────────────────────────────────────────────────────────────────────────────────────────────
class Begin(msgspec.Struct, frozen=True, tag=True):
    """Everybody is connected: join the peers and load the roles, from the checkpoint's shards where a role has them.

    Before that, compare what is read with the plan's fingerprints.
    """

    addresses: tuple[str, ...]
    prepared: tuple[str, ...]
    checkpoint: dict[str, SavedRole]


class Share(msgspec.Struct, frozen=True):
    """Of a train_step: `sizes` and `groups` are those of the whole of it, `places` of these samples alone
    (`data.minibatches`)."""

    sizes: tuple[int, ...] = ()
    groups: int = 0
    places: tuple[tuple[int, ...], ...] = ()


class Request(msgspec.Struct, frozen=True, tag=True):
    """Get the inputs of one part of a call, say `Syn`, and execute it when the `Ack` comes.

    One without sources has no inputs to get: it is executed in the order of the acks, as if it were one. Nobody reads
    rows of steps before `oldest` from memory any more.

    `settings` is the version of the run's settings that it is executed under; `version` counts the changes of the role
    that its parameters have: those that the call reads, or with the one that it makes. Of the samples `shown`, some of
    `ids`, a train_step shows rows. `arguments` are those that a script gives it, as JSON. Where it is `uneven`, some of
    its samples have no row of some keys: an empty one. What it makes is spilled, stays in memory alone, as before a
    script's loop, or is of no use: who `leaves` nothing only computes in step with others.
    """

    id: int
    step: int
    call: str
    part: int
    ids: tuple[str, ...]
    sources: tuple[RowSource, ...]
    record: dict[str, Any] | None
    settings: int = 0
    version: int = 0
    oldest: int = 0
    shown: tuple[str, ...] = ()
    cut: Share = Share()
    arguments: str = ""
    uneven: bool = False
    leaves: Literal["spill", "memory", "nothing"] = "spill"

    @property
    def told_as(self) -> tuple[int, str, int]:
        """Step, call and part, as who executes it says."""
        return self.step, str(self) if self.leaves == "memory" else self.call, self.part

    def __str__(self) -> str:
        return f"{self.call}{BEFORE_LOOP}" if self.leaves == "memory" else f"{self.call} of step {self.step}"


class Move(msgspec.Struct, frozen=True, tag=True):
    """Bring the role's parameters from its home to this replica of it, in the order of the acks.

    `version` counts the changes of the role that they have. Ids are those of requests.
    """

    id: int
    role: str
    replica: int
    version: int


class LetGo(msgspec.Struct, frozen=True, tag=True):
    """Let the parameters of this replica go: nobody reads them before the next move."""

    role: str
    replica: int


class Ack(msgspec.Struct, frozen=True, tag=True):
    """All workers of the request have their inputs: execute it, in the order of the acks."""

    request: int


class Save(msgspec.Struct, frozen=True, tag=True):
    """Copy the role's state as it is now (after `step`), then write it behind the work: into the checkpoint, into the
    folder where the export is made, or both."""

    step: int
    role: str
    checkpoint: bool
    export: bool


class Verify(msgspec.Struct, frozen=True, tag=True):
    """Read these shards of the checkpoint of `step` back from the disk, behind the work, and compare them."""

    step: int
    shards: tuple[FileRef, ...]


class Assemble(msgspec.Struct, frozen=True, tag=True):
    """All shards of a role after `step` are where its export is made: write your share of the export's files."""

    step: int
    role: str


ToMaster = (
    AgentHello
    | WorkerExited
    | NodeDraining
    | ChoreDone
    | ChoreFailed
    | WorkerHello
    | WorkerReady
    | Syn
    | Reply
    | Moved
    | Spilled
    | ShardWritten
    | ShardsVerified
    | ExportWritten
    | Failed
    | Here
    | Beat
    | FromScript
)
Report = Syn | Reply | Moved | Spilled | ShardWritten | ShardsVerified | ExportWritten | FromScript
"""What workers say of their calls."""
ToAgent = StartWorkers | WorkersConnected | KeepStep | RemoveParts | ShowStacks | Finish | AreYouThere | Beat
ToWorker = Begin | Request | Move | LetGo | Ack | Save | Verify | Assemble | Finish | AreYouThere | Beat | ToScript
ToPeer = Fetch | Rows
Message = ToMaster | ToAgent | ToWorker | ToPeer | Bundle
