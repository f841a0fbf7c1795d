"""The host of CPU workers: holds roles that have no model, and imports no torch. It has no peers and keeps nothing."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hpcrl.data.datasets import open_texts
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import SavedRole
from hpcrl.errors import InternalError
from hpcrl.placement.plan import ModelName, Part
from hpcrl.plugins import load
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.workers.host import Arrived, HostContext, Outcome, Snapshot, Work
from hpcrl.workers.registered import perform
from hpcrl.workers.role import Role, RoleContext


class RewardHost:
    """Fulfils `hpcrl.workers.host.Host`."""

    software = ""
    attention: Mapping[str, str] = MappingProxyType({})
    """No bits of a train_step are made here."""
    speeds: Mapping[str, float] = MappingProxyType({})

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self._plan = context.plan
        self._experiment: Any = experiment_from(context.plan.experiment)
        self._forms = algorithm_of(self._experiment).forms(self._experiment)
        self._roles: dict[ModelName, Role] = {}

    def prepare(self) -> str:
        return ""

    def load(self, peers: Sequence[str], checkpoint: Mapping[str, SavedRole]) -> None:
        texts = open_texts(self._experiment, self._context.datasets)
        for replica in self._plan.replicas:
            if self._context.rank in replica.ranks:
                self._context.told(f"loading {replica.role}")
                context: RoleContext[Any] = RoleContext(role=replica.role, experiment=self._experiment, texts=texts)
                maker = load(algorithm_of(self._experiment).roles[replica.role].maker)
                self._roles[replica.model] = maker(context)

    def execute(self, work: Work) -> Outcome:
        call = self._plan.call(work.call)
        role = self._roles[self._plan.at[call.name]]
        role.experiment = work.experiment or self._experiment
        return perform(role, work, call, self._forms)

    def share(self, part: Part, batch: SequenceSample) -> SequenceSample:
        raise InternalError(f"ranks {list(part.ranks)} are one part: CPU workers are one each.")

    def move(self, replica: ModelName, version: int) -> Arrived:
        raise InternalError(f"{replica} has no parameters: a CPU worker holds it.")

    def let_go(self, replica: ModelName) -> None:
        raise InternalError(f"{replica} has no parameters: a CPU worker holds it.")

    def snapshot(self, role: str) -> Snapshot:
        raise InternalError(f"{role} has no state: a CPU worker holds it.")

    def close(self) -> None:
        for role in self._roles.values():
            role.close()
