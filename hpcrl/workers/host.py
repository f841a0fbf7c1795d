"""What a worker asks of the code that holds its roles. Knows neither torch nor messages.

The plan names a host class for each worker by import path (`hpcrl.algos.host:TorchHost`, `hpcrl.workers.toy:ToyHost`,
`hpcrl.workers.reward_host:RewardHost`). One worker process builds one host; the host holds this worker's shard of every
role that the plan puts on it. Workers of one host are each other's peers; they rank before those of the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcrl.data.rows.kind import Dataset
from hpcrl.data.samples import SequenceSample
from hpcrl.placement.plan import Plan
from hpcrl.wire.address import LOOPBACK_ONLY, Network

Stats = Mapping[str, tuple[float, float]]
"""name → (total, weight); the master adds the parts up in part order and reports total / weight."""


def nobody_is_told(_what: str) -> None:
    """Nothing happens."""


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
    told: Callable[[str], None] = nobody_is_told
    """Told in a few words what is being loaded, and how far it is: whoever makes progress is waited for. Reading and
    computing, of a compiler say, are progress by themselves from the first word on; before, it joins its peers."""


@dataclass(frozen=True)
class Work:
    """One part of one call, to be done now.

    `batch` holds the rows of this part under the call's own key names (remaps undone). `minibatches` are ids of the
    whole batch in canonical order, for train_step. `record` is set in replay: it is followed, nothing is decided anew.
    `experiment` is set where the call runs under older settings than the host was made with: a replay does, whose step
    was made under them.
    """

    step: int
    call: str
    part: int
    batch: SequenceSample
    minibatches: tuple[tuple[str, ...], ...] = ()
    record: Mapping[str, Any] | None = None
    experiment: Any = None


@dataclass(frozen=True)
class Outcome:
    """What a call produced. Only train_step has a record; only the others have a sample.

    A record is JSON-able, equal on all ranks of the role, and holds all that a replay follows and
    `digest`, a hex string over this role's parameters and optimizer state.
    """

    sample: SequenceSample | None = None
    stats: Stats = field(default_factory=dict)
    record: Mapping[str, Any] | None = None
    inexact: str = ""
    """Of a train_step: an operation on this rank that may give other bits every time, by name."""


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

    def prepare(self) -> str:
        """What the peers need to find this worker (rank 0: address of the store of the process group), or ""."""

    def load(self, peers: Sequence[str], checkpoint: Mapping[str, Sequence[Path]]) -> None:
        """Join the peers (what `prepare` returned on each worker of this host, by rank) and load all roles placed here.

        `checkpoint` maps a trained role to the shard files of the cut, in rank order; a role that is not in it
        starts from its base weights.
        """

    def execute(self, work: Work) -> Outcome: ...

    def snapshot(self, role: str) -> Snapshot: ...

    def exporter(self, role: str) -> Callable[[Path], None] | None:
        """Copy the role's weights now; what is returned writes them to a directory later, from another thread.

        None where this rank has nothing to write.
        """

    def close(self) -> None: ...
