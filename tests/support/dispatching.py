"""A dispatcher without graph, workers or files."""

from dataclasses import dataclass, field

from hpcrl.data.samples import KeyMeta, SampleMeta
from hpcrl.dataflow.readiness import Readiness
from hpcrl.dataflow.tasks import Version
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Numerics
from hpcrl.events import Event
from hpcrl.figures import Figures
from hpcrl.master.dispatcher import Dispatcher
from hpcrl.master.drift_check import DriftCheck
from hpcrl.master.drop_limits import DropLimits
from hpcrl.master.jobs import Movers
from hpcrl.master.pace import Pace
from hpcrl.master.step_metrics import StepMetrics
from hpcrl.master.surroundings import Surroundings
from hpcrl.progress import Progress
from hpcrl.recipes.algorithm import DropLimit
from hpcrl.wire.holders import FROM_DATA, InDataset
from hpcrl.wire.messages import Message, Reply, Request, Spilled, Syn

IDS = ("a", "b")


@dataclass
class Stage:
    """A dispatcher whose clock stands still unless it is moved, and everything that it sent."""

    sent: list[tuple[int, Message]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        around = Surroundings(
            lambda *pair: self.sent.append(pair),
            self.events.append,
            self.progress.append,
            clock=lambda: self.now,
        )
        self.pace = Pace(around.clock)
        numerics = Numerics(1, ("cpu",), ("numpy",), 1)
        drift = DriftCheck({}, True, self.events.append)
        metrics = StepMetrics(DropLimits({"rew_inf": DropLimit("reward.max_dropped", 0.25)}, lambda _: 2))
        metrics.opened(1)
        self.readiness = Readiness()
        self.dispatcher = Dispatcher(
            self.readiness, drift, lambda *_: numerics, metrics, self.pace, around, self.movers
        )
        self.dispatcher.rows.put(1, FROM_DATA, ["x"], IDS, InDataset("train"))

    def movers(self, version: Version) -> Movers:
        """Replica n is on rank n, the home on the ranks 0 and 1. What replica 1 has goes once it is read."""
        helpers = tuple(rank for rank in (0, 1) if rank != version.replica)
        return Movers((version.replica,), helpers, drops=version.replica == 1)

    def requests(self) -> list[tuple[int, Request]]:
        """What was sent since the last look."""
        found = [(rank, body) for rank, body in self.sent if isinstance(body, Request)]
        self.sent.clear()
        return found

    def reply(self, request: Request, rank: int, record: dict | None = None) -> None:
        keys = {} if record else {"y": KeyMeta("int64", ((3,), (4,)))}
        meta = None if record else SampleMeta(request.ids, keys)
        self.dispatcher.hear(Syn(request.id, rank))
        self.dispatcher.hear(
            Reply(request.id, rank, meta, {"n": (2.0, 2.0)}, record, 0.1, figures=Figures(tokens=rank + 1))
        )

    def spill(self, request: Request, rank: int) -> None:
        self.dispatcher.hear(Spilled(request.id, rank, FileRef(f"{request.call}.h5", 1, 2), 0.1))
