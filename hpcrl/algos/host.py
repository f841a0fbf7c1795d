"""The host of all algorithms that need torch: this worker's shards of the roles that the plan puts on it."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.role import BlendedRole, ModelRole, TrainedRole
from hpcrl.data.datasets import open_texts, training_steps
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.checkpoints import read_shard
from hpcrl.engines.engine import EngineState, Shard
from hpcrl.errors import ConfigurationError, InternalError
from hpcrl.models.kernels import Kernels
from hpcrl.parallel.context import ParallelContext
from hpcrl.placement.abilities import axes_of, axes_problem
from hpcrl.placement.plan import ModelName, ReplicaPlan
from hpcrl.plugins import load
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.workers.host import HostContext, Outcome, Snapshot, Work
from hpcrl.workers.role import Role


class TorchHost:
    """Fulfils `hpcrl.workers.host.Host`. Owns the process group and the roles; knows no algorithm's arithmetic."""

    def __init__(self, context: HostContext) -> None:
        self._plan = context.plan
        self._rank = context.rank
        self._told = context.told
        self._experiment: Any = experiment_from(context.plan.experiment)
        self._algorithm = algorithm_of(self._experiment)
        self._texts = open_texts(self._experiment, context.datasets)
        torch.set_num_threads(self._experiment.cluster.threads_per_worker)
        self._kernels = Kernels(self._experiment.deterministic)
        self._device = _device(context.device, context.device_uuid)
        self._peers = context.plan.peers(context.rank)
        self._parallel = ParallelContext(context.rank, len(self._peers), self._device, context.network)
        self._roles: dict[ModelName, Role] = {}

    @property
    def software(self) -> str:
        """Also of a GPU's host, whose advantages are estimated on the CPU: a virtual machine may hide what it could."""
        return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"

    def prepare(self) -> str:
        return self._parallel.invite()

    def load(self, peers: Sequence[str], checkpoint: Mapping[str, Sequence[Path]]) -> None:
        self._parallel.join(peers[0])
        held = [replica for replica in self._plan.replicas if not set(self._peers).isdisjoint(replica.ranks)]
        replicas = sorted(held, key=lambda replica: replica.model)
        self._parallel.form(replica.ranks for replica in replicas)
        for replica in replicas:
            if self._rank not in replica.ranks:
                continue
            self._told(f"loading {replica.role}")
            self._roles[replica.model] = self._build(replica)
            if replica in self._plan.changed and replica.role in checkpoint:
                self._resume(replica.role, checkpoint[replica.role])

    def execute(self, work: Work) -> Outcome:
        self._parallel.begin_unit()
        call = self._plan.call(work.call)
        model = self._plan.at[call.name]
        self._settle(model, work.experiment or self._experiment)
        if call.kind == "blend":
            return self._blend(work, call)
        outcome: Outcome = getattr(self._roles[model], call.method or call.kind)(work, call)
        if outcome.record is None:
            return outcome
        record = {**outcome.record, "digest": self._state(model).digest()}
        return replace(outcome, record=record, inexact=self._kernels.lacking)

    def snapshot(self, role: str) -> Snapshot:
        home = self._home(role)
        arrays, numbers = self._state(home).snapshot()
        trained = self._remembering(home)
        return Snapshot(arrays, {"engine": numbers, "algorithm": {} if trained is None else trained.state()})

    def exporter(self, role: str) -> Callable[[Path], None] | None:
        return self._state(self._home(role)).export()

    def close(self) -> None:
        for role in self._roles.values():
            role.close()
        self._parallel.leave()

    def _blend(self, work: Work, call: MFC) -> Outcome:
        """Change a role by another's parameters, as much as it says, or as the record says."""
        model, source = self._plan.at[call.name], self._plan.home(call.blends).model
        role = cast(BlendedRole, self._roles[model])
        decay = role.decay(work.step) if work.record is None else float(work.record["decay"])
        if decay < 1.0:
            self._state(model).blend(self._state(source), decay)
        return Outcome(record={"decay": decay, "digest": self._state(model).digest()})

    def _build(self, at: ReplicaPlan) -> Role:
        axes = axes_of(at.role, getattr(self._experiment, at.role))
        if problem := axes_problem(f"{at.role}.layout", at.layout, at.arrangement, axes):
            raise ConfigurationError([problem])
        kind = self._algorithm.roles[at.role]
        builder: Builder[Any] = Builder(
            role=at.role,
            head=kind.head,
            experiment=self._experiment,
            steps=self._training_steps(self._experiment) if at.trainable else None,
            blended=at in self._plan.changed and not at.trainable,
            group=self._parallel.group(at.ranks),
            device=self._device,
            kernels=self._kernels,
            texts=self._texts,
            told=self._told,
        )
        return load(kind.maker)(builder)

    def _settle(self, model: ModelName, experiment: Any) -> None:
        """Have a role work under these settings: those of a replay may be older than the next call's."""
        role = self._roles[model]
        if role.experiment is experiment:
            return
        role.experiment = experiment
        if any(home.model == model for home in self._plan.trained):
            self._state(model).settle(getattr(experiment, model.role), self._training_steps(experiment))

    def _training_steps(self, experiment: Any) -> int:
        batch = self._algorithm.batch(experiment)
        return training_steps(experiment, self._algorithm.rows, batch, self._texts.datasets)

    def _resume(self, name: str, paths: Sequence[Path]) -> None:
        """Read one shard after another, so that one is in memory at a time; the algorithm's state is in all of them."""
        home = self._home(name)
        role = self._remembering(home)

        def shards() -> Iterator[Shard]:
            for number, path in enumerate(paths):
                self._told(f"loading {name}'s checkpoint, shard {number + 1} of {len(paths)}")
                arrays, state = read_shard(path)
                if role is not None:
                    role.load_state(state["algorithm"])
                yield arrays, state["engine"]

        self._state(home).load(shards())

    def _home(self, role: str) -> ModelName:
        """Where a role that changes is changed and saved."""
        home = self._plan.home(role)
        assert home in self._plan.changed, role
        return home.model

    def _state(self, model: ModelName) -> EngineState:
        return cast(EngineState, cast(ModelRole, self._roles[model]).engine)

    def _remembering(self, model: ModelName) -> TrainedRole | None:
        """The role, if it is trained: of one that is blended the engine has all there is."""
        return cast(TrainedRole, self._roles[model]) if self._plan.home(model.role).trainable else None


def _device(name: str, uuid: str) -> torch.device:
    """This worker's device, made CUDA's current one, once CUDA agrees that it is the one that was meant.

    Raises:
        InternalError: CUDA numbers devices in another way than the agent did.
    """
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # CUDA has a name of its own for an instance of a split GPU; a worker sees no other there.
        found = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        if uuid.startswith("GPU-") and found != uuid:
            seen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
            raise InternalError(
                f"{name} is {found}, but this worker was given {uuid} ({seen}).", "Set cluster.gpu_isolation to strict."
            )
    return device
