"""The host of all algorithms that need torch: this worker's shards of the roles that the plan puts on it."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, cast

import torch

from hpcrl.algos.builder import Builder
from hpcrl.algos.role import ModelRole, TrainedRole, own_digest
from hpcrl.backends.attention import FLASH
from hpcrl.data.datasets import open_texts, training_steps
from hpcrl.data.sample_bytes import from_bytes, to_bytes
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.checkpoints import DamagedCheckpointError, SavedRole, loading
from hpcrl.durable.digests import with_memory
from hpcrl.durable.files import Files
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.shards import Shard, open_shard, span_state
from hpcrl.engines.engine import KINDS, EngineState, SharedParts
from hpcrl.errors import ConfigurationError, InternalError
from hpcrl.families.config import DecoderConfig
from hpcrl.models.attention import flash_attention
from hpcrl.models.device import speeds, watch
from hpcrl.models.kernels import Kernels
from hpcrl.models.profiling import profiled
from hpcrl.parallel.context import ParallelContext
from hpcrl.parallel.group import Group
from hpcrl.parallel.moving import carry_out
from hpcrl.parallel.replica import groups_of, sharing
from hpcrl.placement.abilities import axes_of, axes_problem, packages_of, unrepeated
from hpcrl.placement.holdings import Holding, holdings, part_holdings, served_holdings, slices
from hpcrl.placement.judges import models_held
from hpcrl.placement.layouts import Layout, Ranks
from hpcrl.placement.moving import moves
from hpcrl.placement.placing import under
from hpcrl.placement.plan import ModelName, Part, ReplicaPlan
from hpcrl.placement.spaces import RoleModel
from hpcrl.plugins import load
from hpcrl.processes import keep_freed_memory
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.workers.host import Arrived, HostContext, Outcome, Snapshot, Work
from hpcrl.workers.registered import perform
from hpcrl.workers.role import Role

CutBuffers = Callable[[DecoderConfig, Layout, Ranks, int], tuple[Holding, ...]]
"""(model, layout, its ranks, workers) → what each worker has."""


class TorchHost:
    """Fulfils `hpcrl.workers.host.Host`. Owns the process group and the roles; knows no algorithm's arithmetic."""

    def __init__(self, context: HostContext) -> None:
        self._plan = context.plan
        self._rank = context.rank
        self._context = context
        self._experiment: Any = experiment_from(context.plan.experiment)
        self._algorithm = algorithm_of(self._experiment)
        self._forms = self._algorithm.forms(self._experiment)
        self._models = models_held(self._experiment)
        self._texts = open_texts(self._experiment, context.datasets)
        keep_freed_memory()
        torch.set_num_threads(self._experiment.cluster.threads_per_worker)
        self._kernels = Kernels(self._experiment.deterministic)
        self._device = _device(context.device, context.device_uuid)
        self._peers = context.plan.peers(context.rank)
        self._nodes = tuple(worker.node for worker in context.plan.workers)
        self._parallel = ParallelContext(
            context.rank,
            len(self._peers),
            self._device,
            context.network,
            nodes=self._nodes,
            deterministic=self._experiment.deterministic,
            meter=context.meter,
        )
        watch(self._device, context.meter)
        self._roles: dict[ModelName, Role] = {}

    @property
    def software(self) -> str:
        """Also of a GPU's host, whose advantages are estimated on the CPU: a virtual machine may hide what it could."""
        packages = packages_of(replica.backend for replica in self._plan.replicas)
        if self._device.type == "cuda" and flash_attention() is not None:
            packages += [FLASH]
        others = [f"{name} {version(name)}" for name in packages]
        return ", ".join([f"torch {torch.__version__}", torch.backends.cpu.get_cpu_capability(), *others])

    @property
    def speeds(self) -> Mapping[str, float]:
        return speeds(self._device, (getattr(self._experiment, model.role).dtype for model, _ in self._engines()))

    @property
    def attention(self) -> Mapping[str, str]:
        return {str(model): engine.attention for model, engine in self._engines()}

    def prepare(self) -> str:
        return self._parallel.invite()

    def load(self, peers: Sequence[str], checkpoint: Mapping[str, SavedRole]) -> None:
        self._parallel.join(peers[0])
        held = [replica for replica in self._plan.replicas if not set(self._peers).isdisjoint(replica.ranks)]
        replicas = sorted(held, key=lambda replica: (bool(replica.of), replica.model))
        for replica in replicas:
            self._parallel.form(sharing(replica.arrangement, replica.ranks))
        for replica in replicas:
            if self._rank not in replica.ranks:
                continue
            self._context.told(f"loading {replica.role}")
            resumed = replica in self._plan.changed and replica.role in checkpoint
            self._roles[replica.model] = self._build(replica, empty=resumed or not replica.is_home)
            if resumed:
                self._resume(replica.role, checkpoint[replica.role])
            self._release()

    def share(self, part: Part, batch: SequenceSample) -> SequenceSample:
        self._parallel.begin_unit()
        mine = to_bytes(batch) if self._rank == part.head else b""
        return from_bytes(self._parallel.group(part.ranks).told(mine, part.ranks.index(part.head)))

    def execute(self, work: Work) -> Outcome:
        before = self._held()
        with self._profiled(work):
            outcome = self._execute(work)
        during = self._held()
        begun = time.monotonic()
        self._release()
        releasing_s = time.monotonic() - begun
        after = self._held()
        held = {name: (before.get(name, 0), during[name], after.get(name, 0)) for name in sorted(during)}
        return replace(outcome, held=held, releasing_s=releasing_s)

    def _profiled(self, work: Work) -> AbstractContextManager[None]:
        """Records what is done within it, where the settings ask for that."""
        if not self._experiment.control.profile.wants(work.step, work.call):
            return nullcontext()
        run = RunDirectory(self._context.run_dir)
        path = run.trace(self._context.attempt, work.step, work.call, work.part, self._rank)
        return profiled(self._device, run, path)

    def _execute(self, work: Work) -> Outcome:
        self._parallel.begin_unit()
        call = self._plan.call(work.call)
        if call.kind == "blend":
            return self._blend(work, call)
        model = self._plan.at[call.name]
        self._settle(model, work.experiment or self._experiment)
        if (tokens := self._plan.micro_batches.get(call.name)) and model.role in self._models:
            self._state(model).cut(tokens)
        checks = self._experiment.control.check_digests and model.role in self._models
        own = partial(own_digest, self._state(model)) if checks else None
        outcome = perform(self._roles[model], work, call, self._forms, own)
        if outcome.record is None:
            return outcome
        record = {**outcome.record, **self._digests(model)}
        backend = self._plan.placed(model).backend
        inexact = self._kernels.lacking or (unrepeated(backend, self._device.type) if backend else "")
        return replace(outcome, record=record, inexact=inexact)

    def move(self, replica: ModelName, version: int) -> Arrived:
        self._parallel.begin_unit()
        home, target = self._plan.home(replica.role), self._plan.placed(replica)
        source, receiver = (self._state(at.model) if at.model in self._roles else None for at in (home, target))
        self._move_parameters(home, target)
        if home.trainable:
            self._move_memory(home, target)
        arrived = Arrived(*("" if state is None else state.parameters_digest() for state in (source, receiver)))
        self._release()
        return arrived

    def let_go(self, replica: ModelName) -> None:
        self._state(replica).release({"parameters": "drop"})

    def snapshot(self, role: str) -> Snapshot:
        home = self._home(role)
        shard = self._state(home).snapshot()
        algorithm = self._remembering(home).state() if self._plan.home(role).trainable else {}
        state = {"spans": span_state(shard.spans), **shard.state, "algorithm": algorithm}
        return Snapshot(shard.arrays, state)

    def close(self) -> None:
        for role in self._roles.values():
            role.close()
        self._parallel.leave()

    def _blend(self, work: Work, call: MFC) -> Outcome:
        """Change a role by another's parameters, as much as its declaration says, or as the record says.

        Ranks that have the other alone only send theirs.
        """
        home, source = self._plan.home(call.role), self._plan.home(call.blends)
        keeps = self._algorithm.roles[call.role].decay
        assert keeps is not None, "the check of a declaration refuses a blended role without"
        settings = work.experiment or self._experiment
        decay = keeps(settings, work.step) if work.record is None else float(work.record["decay"])
        if decay < 1.0:
            theirs = self._brought_masters(source, home)
            if home.model in self._roles:
                self._state(home.model).blend(theirs, decay)
        if home.model not in self._roles:
            return Outcome()
        return Outcome(record={"decay": decay, **self._digests(home.model)})

    def _brought_masters(self, source: ReplicaPlan, target: ReplicaPlan) -> torch.Tensor:
        """The source's masters as they would lie in the target's slice on this rank, in the source's type."""
        cuts = {at.model: (self._models[at.role].experts, at.cut_by) for at in (source, target)}
        if (source.layout, source.ranks, cuts[source.model]) == (target.layout, target.ranks, cuts[target.model]):
            return self._state(source.model).masters()[1]
        masters = {at.model: self._state(at.model).masters() for at in (source, target) if at.model in self._roles}
        config, some = next(iter(masters.values()))
        dtype = torch.float64 if getattr(self._experiment, source.role).dtype == "fp64" else torch.float32
        sent = masters[source.model][1] if source.model in masters else some.new_empty(0, dtype=dtype)
        length = len(masters[target.model][1]) if target.model in masters else 0
        received = some.new_zeros(length, dtype=dtype)  # where nothing lies, nothing comes
        held = self._held_in(slices, config, source), self._held_in(slices, config, target)
        self._carry_out(held, sent, received, _taking_part(source, target))
        return received

    def _held_in(self, cut: CutBuffers, config: DecoderConfig, at: ReplicaPlan) -> tuple[Holding, ...]:
        """What each worker has of a replica in its buffer, which its backend lays out: in whole cuts, or in parts."""
        if by := at.cut_by:
            return part_holdings(config, at.ranks, len(self._plan.workers), by)
        if at.served:
            return served_holdings(config, at.arrangement, at.ranks, len(self._plan.workers))
        model = config.with_experts_cut(self._models[at.role].experts)
        return cut(model, at.arrangement, at.ranks, len(self._plan.workers))

    def _carry_out(
        self, held: tuple[tuple[Holding, ...], ...], sent: torch.Tensor, received: torch.Tensor, parties: int
    ) -> None:
        """This rank's part in what brings `held[0]` to where `held[1]` says."""
        view = moves(held[0], held[1], self._nodes, self._rank)
        carry_out(view, sent, received, self._everyone, parties=parties)

    @property
    def _everyone(self) -> Group:
        """Parameters go from one rank to another in it, so that no two places need a communicator of their own."""
        return self._parallel.group(self._parallel.everyone)

    def _move_parameters(self, home: ReplicaPlan, target: ReplicaPlan) -> None:
        """From buffer to buffer; who has no part in one of them has an empty one."""
        flat = {at.model: self._state(at.model).flat() for at in (home, target) if at.model in self._roles}
        config, some = next(iter(flat.values()))
        nothing = config, some[:0]
        source, received = (flat.get(at.model, nothing)[1] for at in (home, target))
        held = self._held_in(holdings, config, home), self._held_in(holdings, config, target)
        self._carry_out(held, source, received, _taking_part(home, target))

    def _move_memory(self, home: ReplicaPlan, target: ReplicaPlan) -> None:
        """What the algorithm itself remembers, as a value normaliser."""
        first = home.ranks[0]
        if self._rank not in (first, *target.ranks):
            return
        mine = json.dumps(self._remembering(home.model).state()).encode() if self._rank == first else b""
        told = json.loads(self._everyone.told(mine, first, target.ranks))
        if target.model in self._roles:
            self._remembering(target.model).load_state(told)

    def _engines(self) -> Iterator[tuple[ModelName, EngineState]]:
        """Those of the roles that have a model."""
        yield from ((model, self._state(model)) for model in self._roles if model.role in self._models)

    def _held(self) -> dict[str, int]:
        """Role and kind → bytes on the device, of what is there."""
        return {f"{model}.{kind}": n for model, engine in self._engines() for kind, n in engine.held().items() if n}

    def _release(self) -> None:
        """Let go what is not to stay on the device between calls. A blended role's masters go with its parameters."""
        for model, engine in self._engines():
            between, at = self._models[model.role].between, self._plan.placed(model)
            if at.is_home:
                engine.release({kind: getattr(between, kind, between.parameters) for kind in KINDS})
            elif at.between == "host":
                engine.release({"parameters": "host"})

    def _digests(self, model: ModelName) -> dict[str, str]:
        """Of all that a role has, its algorithm's memory with it, and of what its replicas must have; their space."""
        state = self._state(model)
        memory = self._remembering(model).state() if self._plan.home(model.role).trainable else {}
        digest = with_memory(state.digest(), memory)
        return {"digest": digest, "parameters": state.parameters_digest(), "space": state.space}

    def _build(self, at: ReplicaPlan, *, empty: bool) -> Role:
        """`empty` where a checkpoint or a move brings its parameters."""
        kind = self._algorithm.roles[at.role]
        axes = axes_of(at.role, under(getattr(self._experiment, at.role), at.backend), kind.axes)
        if problem := axes_problem(f"{at.role}.layout", at.layout, at.arrangement, axes):
            raise ConfigurationError([problem])
        builder: Builder[Any] = Builder(
            role=at.role,
            backend=at.backend,
            head=kind.head,
            experiment=self._experiment,
            steps=self._training_steps(self._experiment) if at.trainable else None,
            blended=at in self._plan.changed and not at.trainable,
            at_home=at.is_home,
            empty=empty,
            groups=groups_of(self._parallel, at.arrangement, at.ranks),
            device=self._device,
            kernels=self._kernels,
            texts=self._texts,
            told=self._context.told,
            meter=self._context.meter,
            server=self._context.servers.get(str(at.model)),
            shared=cast(ModelRole, self._roles[ModelName(at.of)]).engine if at.of else None,
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

    def _resume(self, name: str, saved: SavedRole) -> None:
        """Read of each shard what this rank has; the algorithm's state is in all of them."""
        home = self._home(name)
        role = self._remembering(home) if self._plan.home(name).trainable else None
        state = self._state(home)
        ranks = self._plan.home(name).ranks
        saved.compare_share(Files(self._context.run_dir), ranks.index(self._rank), len(ranks))
        with loading():
            opened = [open_shard(self._context.run_dir / shard.name) for shard in saved.shards]
            memories: list[Mapping[str, Any]] = [shard.state["algorithm"] for shard in opened]
            shards = RoleModel.of(self._experiment, name).shards(opened, state.space)
            shared = state.shared(opened) if shards is opened else None
            exact = state.load(self._read(name, shared or shards))
            if shared is None:
                summed = state.digest_of(opened)
            elif exact:
                summed = state.digest()
            else:
                summed = shared.digest()
        for memory in memories if saved.digest else ():
            if saved.digest != (digest := with_memory(summed, memory)):
                raise DamagedCheckpointError(f"{name} was saved with digest {saved.digest}, and loaded with {digest}")
        if role is not None:
            role.load_state(memories[0])

    def _read(self, name: str, shards: SharedParts | Sequence[Shard]) -> Iterator[Shard]:
        """One after another, while whoever waits is told how far it is."""
        for number, shard in enumerate(shards, 1):
            self._context.told(f"loading {name}'s checkpoint, part {number} of {len(shards)}")
            yield shard

    def _home(self, role: str) -> ModelName:
        """Where a role that changes is changed and saved."""
        home = self._plan.home(role)
        assert home in self._plan.changed, role
        return home.model

    def _state(self, model: ModelName) -> EngineState:
        return cast(EngineState, cast(ModelRole, self._roles[model]).engine)

    def _remembering(self, model: ModelName) -> TrainedRole:
        return cast(TrainedRole, self._roles[model])


def _taking_part(one: ReplicaPlan, other: ReplicaPlan) -> int:
    """How many workers are in either."""
    return len({*one.ranks, *other.ranks})


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
