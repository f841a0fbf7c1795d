"""Points within a real training step, put into workers from outside: hpcrl's own code has none of them.

`Phased(fault)` is a fault like any other (`finish(run, Phased(strike))`). In every worker it wraps the methods below
before the host is made; `fault` then hears `NAME.begin` when one is called and `NAME.end` when it has returned, besides
all points that hpcrl has itself (`worker.call`, `spill.write`, `shard.write`, `export.write`, …).
"""

import functools
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from support.faults import Strike

PHASES = {
    "join": "hpcrl.parallel.context:ParallelContext.join",
    "form": "hpcrl.parallel.context:ParallelContext.form",
    "build": "hpcrl.algos.host:TorchHost._build",
    "read": "hpcrl.models.reading:TensorFiles.packed",
    "stretch": "hpcrl.engines.shared_shards:SharedShards._read",
    "load": "hpcrl.engines.composed:ComposedEngine.load",
    "generate": "hpcrl.engines.composed:ComposedEngine.generate",
    "ask": "hpcrl.engines.servers.ask_vllm:Connection.generate",
    "hear": "hpcrl.engines.servers.ask_vllm:Connection._heard",
    "decode": "hpcrl.models.decoder:Decoder.decode",
    "inference": "hpcrl.engines.composed:ComposedEngine.forward",
    "reward": "hpcrl.workers.rewards:Reward.inference",
    "judge": "hpcrl.algos.classifier:RewardModel.inference",
    "minibatch": "hpcrl.engines.composed:ComposedEngine.train_batch",
    "forward": "hpcrl.engines.model:PackedModel.forward",
    "backward": "torch:Tensor.backward",
    "total": "hpcrl.parallel.context:Group.total",
    "reduce": "hpcrl.parallel.context:Group.reduce_scatter",
    "blend": "hpcrl.engines.composed:ComposedEngine.blend",
    "carry": "hpcrl.algos.host:TorchHost._carry_out",
    "give": "hpcrl.engines.vllm:WeightFiles._write_file",
    "let_go": "hpcrl.algos.host:TorchHost.let_go",
    "release": "hpcrl.engines.release:DeviceBuffers._room",
    "restore": "hpcrl.engines.release:DeviceBuffers.need",
    "optimizer": "hpcrl.engines.adamw:ShardedAdamW._update",
    "gather": "hpcrl.parallel.context:Group.all_gather",
    "digest": "hpcrl.engines.composed:ComposedEngine.digest",
    "snapshot": "hpcrl.engines.composed:ComposedEngine.snapshot",
}
"""Phase → what is wrapped.

join, form: group creation; build, load: weights, and a checkpoint's shards; read: a rank's share of a model's files,
a round of it; stretch: a piece of a shard; ask, hear: a generation that a server makes, and a response or another word
of it; decode: a token of all rows that are being generated; inference: a forward call without gradients; judge: a
reward model's call; minibatch: all of one; forward: of one micro-batch, in inference too; total, reduce, gather: the
collectives of statistics, gradients and parameters; carry: what a rank sends and receives in a move or a blend; give: a
file of weights, for vLLM; release: into host memory; restore: also of what never left; snapshot: a checkpoint's copy.
Where one member of a group waits at `reduce.begin`, or dies there, the others are inside that collective.
"""


@dataclass
class Phased:
    """Tells `fault` of the phases too. Other points go to it unchanged."""

    fault: Callable[[str], None]

    def __call__(self, point: str) -> None:
        self.fault(point)
        if point == "worker.start":
            for name, path in PHASES.items():
                _wrap(name, path, self.fault)


@dataclass
class Cut(Strike):
    """Cuts this worker's connections to its peers in collectives, and then does what a strike does. All stay alive.

    Has to be `Phased`: its connections are the sockets that were opened between `join` and the end of `form`.
    """

    others: set[int] = field(default_factory=set)
    peers: set[int] = field(default_factory=set)

    def __call__(self, point: str) -> None:
        if point == "join.begin":
            self.others = _sockets()
        elif point == "form.end":
            self.peers = _sockets() - self.others
        super().__call__(point)

    def _strike(self) -> None:
        for descriptor in self.peers:
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.getpeername()  # one that listens has none, and gloo would end the process
                connection.shutdown(socket.SHUT_RDWR)
        super()._strike()


def _sockets() -> set[int]:
    """Descriptors of this process that are sockets."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                found.add(int(descriptor))
    return found


def _wrap(name: str, path: str, fault: Callable[[str], None]) -> None:
    """In this process, which is one worker's and ends with it."""
    module, _, place = path.partition(":")
    owner, method = place.split(".")
    wrapped = getattr(import_module(module), owner)
    plain = getattr(wrapped, method)

    @functools.wraps(plain)
    def passing(*arguments: Any, **named: Any) -> Any:
        fault(f"{name}.begin")
        result = plain(*arguments, **named)
        fault(f"{name}.end")
        return result

    setattr(wrapped, method, passing)
