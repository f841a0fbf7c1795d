"""What a worker asks of the code that holds its roles. Knows neither torch nor messages.

The plan names a host class for each worker by import path (`hpcrl.algos.host:TorchHost`, `hpcrl.workers.toy:ToyHost`,
`hpcrl.workers.reward_host:RewardHost`). One worker process builds one host; the host holds this worker's shard of every
role that the plan puts on it. Workers of one host are each other's peers; they rank before those of the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpcrl.data.minibatches import cut_of
from hpcrl.data.rows.kind import Dataset
from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import Total
from hpcrl.durable.checkpoints import SavedRole
from hpcrl.placement.plan import ModelName, Part, Plan
from hpcrl.wire.address import LOOPBACK_ONLY, Network
from hpcrl.wire.holders import RowSource
from hpcrl.wire.script_messages import FromScript, ToScript
from hpcrl.workers.meter import Meter

Stats = Mapping[str, tuple[float, ...]]
"""name → (total, weight), or (total, weight, what rounding has left out of the total); the master adds the parts up."""


def nobody_is_told(_what: str) -> None:
    """Nothing happens."""


class Door(NamedTuple):
    """Where a server is reached: a socket, the attempt that it is told, and how long it may do nothing when asked."""

    socket: Path
    attempt: int
    patience_s: float


class ScriptLine(Protocol):
    """Of a worker to its master, for the script that it runs. For any thread."""

    def ask(self, message: FromScript) -> None: ...

    def told(self, message: FromScript) -> None:
        """Say something that is no ask."""

    def hear(self) -> ToScript:
        """The next that the master says; waits for it."""
        ...

    def rows(self, ids: Sequence[str], sources: Sequence[RowSource]) -> SequenceSample:
        """The rows of these samples, in this order; waits for them."""
        ...

    def totals(self, sources: Sequence[RowSource]) -> Sequence[Total]:
        """What the numbers of each source add up to, as they are held; waits for them."""
        ...

    def failed(self, what: str, error: BaseException) -> None:
        """The script has raised: the attempt ends."""


@dataclass(frozen=True)
class HostContext:
    """All that a host may know of the world around it."""

    rank: int
    plan: Plan
    run_dir: Path
    datasets: Mapping[str, Dataset]
    """By name, "train" and maybe "eval": opened once in a worker."""
    device: str = "cpu"
    """As torch names it."""
    device_uuid: str = ""
    """What `device` has to be, as NVML names it; "" where nobody said."""
    network: Network = LOOPBACK_ONLY
    """Where it listens, and other nodes reach this one."""
    attempt: int = 0
    servers: Mapping[str, Door] = field(default_factory=dict)
    """By model: where what makes responses of it for this worker is reached, as far as servers do."""
    meter: Meter = field(default_factory=Meter)
    """Told what this worker's calls do."""
    script: "ScriptLine | None" = None
    """What a script's host says to the master, and hears: of no other."""
    told: Callable[[str], None] = nobody_is_told
    """Told in a few words what is being loaded, and how far it is: whoever makes progress is waited for. Reading and
    computing, of a compiler say, are progress by themselves from the first word on; before, it joins its peers."""


@dataclass(frozen=True)
class Work:
    """One part of one call, to be done now.

    `batch` holds the rows of this part under the call's own key names (remaps undone). `minibatches` are, for
    train_step, its ids by mini-batch, those of all passes where passes have others; `sizes` says how many samples each
    has over all parts, and `groups` how many groups there are, and the number of each sample's. Without these, this
    part holds all samples, or `minibatches` names those of others too. `record` is set in replay: it is followed,
    nothing is decided anew. `experiment` is set where the call runs under older settings than the host was made with:
    a replay does, whose step was made under them. `version` counts the changes of the role's parameters: those that
    the call reads have so many, or those that it makes. `arguments` are those that a script gives. `shown` are samples
    of the batch of which a train_step shows what it has before its loss; none on ranks that are not asked for it.
    """

    step: int
    call: str
    part: int
    batch: SequenceSample
    minibatches: tuple[tuple[str, ...], ...] = ()
    record: Mapping[str, Any] | None = None
    experiment: Any = None
    version: int = 0
    shown: tuple[str, ...] = ()
    arguments: tuple[Any, ...] = ()
    sizes: tuple[int, ...] = ()
    groups: tuple[int, tuple[int, ...]] = (0, ())

    @property
    def whole(self) -> tuple[int, ...]:
        """How many samples each mini-batch has over all parts."""
        return self.sizes or tuple(map(len, self.minibatches))

    @property
    def numbered(self) -> tuple[int, tuple[int, ...]]:
        """How many groups there are over all parts, and the number of each sample's."""
        if self.groups[0]:
            return self.groups
        cut = cut_of(self.minibatches)
        return cut.groups, tuple(cut.places[sample][0] for sample in self.batch.ids)


@dataclass(frozen=True)
class Outcome:
    """What a call produced. Only train_step and blend have a record; a blend has no sample, and a train_step one of the
    rows that it shows, where it is asked for some.

    A record is JSON-able, equal on all ranks of the role, and holds all that a replay follows and two digests, each a
    hex string that says nothing of the layout: `digest` over all of the role's state, `parameters` over its parameters
    alone, as a move has it. A worker that only gives a blend the parameters that it takes in has none.
    """

    sample: SequenceSample | None = None
    stats: Stats = field(default_factory=dict)
    record: Mapping[str, Any] | None = None
    inexact: str = ""
    """Of a train_step: an operation on this rank that may give other bits every time, by name."""
    held: Mapping[str, tuple[int, int, int]] = field(default_factory=dict, compare=False)
    """Role and kind ("actor.optimizer") → bytes on this worker's device before, in and after the call; nothing that the
    call made."""
    releasing_s: float = field(default=0.0, compare=False)
    """What letting go of models took at its end."""
    values: tuple[str, ...] = ()
    """What a method of JSON has returned, for each of its samples; it makes no rows."""


@dataclass(frozen=True)
class Arrived:
    """Digests of a role's parameters once they are moved, over all ranks that hold some of them: on those of its home,
    of the replica, or both; "" where this rank has no part."""

    home: str = ""
    replica: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A host-memory copy of this rank's shard of a role's state, safe to write while training goes on."""

    arrays: Mapping[str, np.ndarray]
    state: Mapping[str, Any]


class Host(Protocol):
    """Holds this worker's shards. Called from one thread only."""

    @property
    def software(self) -> str:
        """What computes, besides the device, as far as bits depend on it: a library, its version, its variant."""
        ...

    @property
    def attention(self) -> Mapping[str, str]:
        """Model → the kernels that compute its attention here, by name, of all models that are loaded."""
        ...

    @property
    def speeds(self) -> Mapping[str, float]:
        """Type of numbers → operations a second that this worker's CPU multiplies matrices with, of those that its
        models have; nothing where it computes on a GPU, or has none. Asked for once all is loaded."""
        ...

    def prepare(self) -> str:
        """What the peers need to find this worker (rank 0: address of the store of the process group), or ""."""

    def load(self, peers: Sequence[str], checkpoint: Mapping[str, SavedRole]) -> None:
        """Join the peers (what `prepare` returned on each worker of this host, by rank) and load all roles placed here.

        A trained role that is not in `checkpoint` starts from its base weights. Raises DamagedCheckpointError where
        what was loaded has another digest, or a file is no shard.
        """

    def share(self, part: Part, batch: SequenceSample) -> SequenceSample:
        """The batch of the part's head, on each of its ranks: they all call this together. Empty ones are shared too.

        Not asked for where a part has one rank.
        """
        ...

    def execute(self, work: Work) -> Outcome:
        """The work of this rank's part; of what changes a role, together with all of its ranks.

        Ranks that hold the role a blend takes in, and not the one that it changes, execute it too.
        """
        ...

    def move(self, replica: ModelName, version: int) -> Arrived:
        """Bring a role's parameters, which have so many changes, from its home to another replica of it.

        All ranks of both call this together. What else of the role's state its calls read elsewhere, as a value
        normaliser, comes along. A replica has nothing before its first move; the home stays as it is.
        """
        ...

    def let_go(self, replica: ModelName) -> None:
        """Let the parameters of a replica go, which is not its role's home; its next use follows a move."""
        ...

    def snapshot(self, role: str) -> Snapshot: ...

    def close(self) -> None: ...
