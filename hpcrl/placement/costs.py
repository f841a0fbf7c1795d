"""How long each call lasts at each place, and what it needs of memory: what a search compares. Pure, in integers.

A call lasts as long as its slowest part. Texts are cut as a run cuts them, pipelines are played over micro-batches as
unequal as they are, generation over the visits that its scheduler makes; operations are those that workers count. A
call without a model, or by a user's method, lasts as long as was measured of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.fields import sections_of
from hpcrl.config.judge import slots_of
from hpcrl.config.model import ModelConfig, TrainedModelConfig, lora_of, shared_with
from hpcrl.dataflow.graph import MFC
from hpcrl.families.adapters import with_adapters
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.ops.search_problem import Stage
from hpcrl.placement.abilities import backend_of, cut_by, server_of
from hpcrl.placement.candidate import candidate_of
from hpcrl.placement.draws import assumed, drawn_by
from hpcrl.placement.exchanges import Party, gathered, party, scattered
from hpcrl.placement.flops import flops_of
from hpcrl.placement.judges import models_held
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import (
    BYTES,
    Memory,
    as_frozen,
    classifier_memory,
    head_model,
    parameters_held,
    replica_memory,
    state_size,
)
from hpcrl.placement.model_costs import ModelCosts, Place
from hpcrl.placement.move_costs import MoveCosts
from hpcrl.placement.pipeline_time import Played, duration, visits_duration
from hpcrl.placement.placing import Placed
from hpcrl.placement.plan import ModelName, ReplicaPlan
from hpcrl.placement.rates import Links, Pass, Rates
from hpcrl.placement.shards import Cut
from hpcrl.placement.stage_memory import WAYS, Work, away, stage_of, waiting_bytes
from hpcrl.placement.unmeasured import Unmeasured, in_words, unmeasured
from hpcrl.placement.worker_memory import NEEDED, taken
from hpcrl.placement.workload import MicroBatches, Workload
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.segments import segments_of

T = TypeVar("T")

ROW_BYTES = 16
"""Of a token, with the numbers that calls give each other beside it."""
SUMS = 4
"""Small exchanges of an update: norms, statistics, what is finite."""


class _Arranged(NamedTuple):
    """A place as far as a call's time depends on it."""

    layout: Layout
    backend: str
    tp: Party
    dp: Party
    far_stages: bool
    """Whether stages that follow each other are on several nodes."""


@dataclass(frozen=True, eq=False)
class CostModel:
    """Of an experiment, on nodes of `cluster.workers_per_node`. Remembers what it has reckoned."""

    experiment: Any
    models: Mapping[str, DecoderConfig]
    """Role → its model under its head, of the roles that an engine of hpcrl holds."""
    rates: Rates
    workload: Workload
    measured: Mapping[str, int] = field(default_factory=dict)
    """Call → nanoseconds, of calls that nothing else is known of."""
    _made: dict[Any, Any] = field(default_factory=dict)
    _unmeasured: set[Unmeasured] = field(default_factory=set)

    def call_nanoseconds(self, call: MFC, place: Placed, tokens: int = 0) -> int:
        """Of a call in one step. `tokens`: of a micro-batch, at most; 0: as its role says."""
        config = self._configs.get(call.role)
        if config is None or call.method or not self._is_known(call.role):
            return self.known.get(call.name, 0)
        if len(segments := segments_of(call, self.experiment)) > 1:
            return sum(self.call_nanoseconds(each, place, tokens) for each in segments)
        at = self._arranged(place)
        draws = call.kind == "generate" and drawn_by(call, self.experiment, self.models[call.role].max_positions)
        key = (call.role, call.kind, draws, at, tokens)
        found = self._once(key, lambda: self._reckoned(call, config, at, tokens or config.micro_batch_tokens))
        return round(found * self.rates.ran.scales.get(call.name, 1.0))

    @property
    def known(self) -> Mapping[str, int]:
        """Call → nanoseconds, of calls that were measured as a whole."""
        return {**self.rates.ran.calls, **self.measured}

    def moves(self, role: str, homes: Sequence[Placed], places: Sequence[Placed]) -> np.ndarray:
        """int64 [homes, places]: the same of all of them, nearly (see `move_costs`)."""
        if role not in self._moves:
            return np.zeros((len(homes), len(places)), np.int64)
        return self._moves[role].matrix(homes, places)

    def release_nanoseconds(self, role: str, place: Placed) -> int:
        """Of parameters from their worker's device to its host's memory, or back."""
        config = self._configs.get(role)
        if config is None or role not in self.models:
            return 0
        size = self._numel(role, config, place.layout, place.backend) * BYTES[config.dtype]
        return round(self.rates.host.nanoseconds(size))

    def waiting_nanoseconds(self, role: str, work: Work, place: Placed) -> int:
        """What a call, or a move, at the home of a role that changes lasts longer for what of the role waits in the
        host's memory."""
        if role not in self._homes or role not in self.models:
            return 0
        home, config = self._homes[role], self._configs[role]
        found = ("waiting", role, work, place.layout, place.backend)
        size = self._once(found, lambda: waiting_bytes(work, *self._memories(home, config, place)))
        return round(WAYS.get(work, 2) * self.rates.host.nanoseconds(size)) if size else 0

    def stages(self, call: MFC, place: Placed, tokens: int = 0) -> tuple[Stage, ...]:
        """Bytes on a worker of each pipeline stage, as `hpcrl plan` reckons them: what its model lasts there, and what
        the call takes besides."""
        config = self._configs.get(call.role)
        if config is None:
            judge = sections_of(self.experiment, ClassifierConfig).get(call.role)
            memories: tuple[Memory, ...] = (Memory() if judge is None else classifier_memory(judge),)
            return tuple(Stage(ceil(it.lasting), ceil(taken(call.kind, it))) for it in memories) * place.layout.pp
        there = replace(config, micro_batch_tokens=tokens or config.micro_batch_tokens)
        key = ("stages", call.role, call.kind, place.layout, place.backend, there.micro_batch_tokens)
        return self._once(key, lambda: self._stages(call, there, place))

    @property
    def notices(self) -> tuple[str, ...]:
        """What is not known of calls, and of those reckoned so far what the profile lacks."""
        calls = algorithm_of(self.experiment).calls(self.experiment)
        unknown = [call.name for call in calls if call.method or not self._is_known(call.role)]
        at = candidate_of(self.experiment, self.experiment.cluster.most_nodes)
        served = [call.name for call in calls if server_of(at.at(call.name, call.role).place.backend)]
        found = [
            f"{name} counts as {self.known[name] / 1e9:.3g} s wherever it is made, as was measured."
            if name in self.known
            else f"{name} counts as 0 s: nobody has measured it."
            for name in unknown
        ]
        found += [f"{name} counts as if hpcrl's own code generated, not its server." for name in served]
        found += [it for call in calls if call.name not in unknown for it in assumed(call, self.experiment)]
        return (*found, *in_words(self._unmeasured))

    def _once(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    # What is known of roles

    @cached_property
    def _configs(self) -> Mapping[str, ModelConfig]:
        return models_held(self.experiment)

    @cached_property
    def _changed(self) -> frozenset[str]:
        calls = algorithm_of(self.experiment).calls(self.experiment)
        return frozenset(call.role for call in calls if call.changes)

    @cached_property
    def _homes(self) -> Mapping[str, MFC]:
        """Role → the call that changes it, of those that are trained or blended; they have models of their own."""
        calls = algorithm_of(self.experiment).calls(self.experiment)
        return {call.changes: call for call in calls if call.changes in self._configs}

    @cached_property
    def _moves(self) -> Mapping[str, MoveCosts]:
        slots = self.experiment.cluster.workers_per_node
        return {
            role: MoveCosts(model, BYTES[self._configs[role].dtype], slots, self.rates)
            for role, model in self.models.items()
            if role in self._configs
        }

    def _is_known(self, role: str) -> bool:
        return self._once(("known", role), lambda: role in self.models and flops_of(self.models[role]) is not None)

    def _model(self, role: str, config: ModelConfig, trained: bool) -> DecoderConfig:
        lora = lora_of(config) if trained else None
        return self.models[role] if lora is None else with_adapters(self.models[role], lora)

    def _numel(self, role: str, config: ModelConfig, layout: Layout, backend: str, trained: bool = False) -> int:
        """Of the stage with most: numbers of a worker that are there, or are trained."""
        model = self._model(role, config, trained)
        counts = (parameters_held(model, Cut(0, layout.tp, stage, layout.pp)) for stage in range(layout.pp))
        most: int = self._once(("numel", role, trained, layout.tp, layout.pp), lambda: max(counts))
        return -(-most // layout.dp) if _shards(backend, layout) and not trained else most

    def _arranged(self, place: Placed) -> _Arranged:
        layout, ranks, slots = place.layout, place.ranks, self.experiment.cluster.workers_per_node
        lines = layout.groups("pp", ranks)
        far = any(len({rank // slots for rank in line}) > 1 for line in lines)
        tp, dp = party(layout, ranks, "tp", slots), party(layout, ranks, "dp", slots)
        return _Arranged(layout, place.backend, tp, dp, far)

    # Time

    def _reckoned(self, call: MFC, config: ModelConfig, at: _Arranged, tokens: int) -> int:
        trains = call.kind == "train_step"
        recompute = trains and isinstance(config, TrainedModelConfig) and config.recompute
        place = Place(at.tp, at.layout.pp, at.backend, recompute)
        costs = ModelCosts(self._model(call.role, config, trains), config.dtype, self.rates, place)
        self._unmeasured.update(unmeasured(call, costs))
        match call.kind:
            case "train_step":
                found = self._training(call.role, costs, config, at, tokens)
            case "generate":
                found = self._generating(call, costs, config, at, tokens)
            case "blend":
                found = self._blending(call.role, config, at)
            case _:
                found = self._predicting(call.role, costs, config, at, tokens)
        return round(found + self.rates.fixed.call_ns + self._rows(at))

    def _training(self, role: str, costs: ModelCosts, config: ModelConfig, at: _Arranged, tokens: int) -> float:
        found, once = 0.0, costs.once("training") + self._updating(role, costs, config, at)
        of_minibatches = self.workload.trained(at.layout.dp, tokens, self._shares(role))
        ways = (True, False) if _teaches_routers(costs.config, config) else (True,)
        every = [part for parts in of_minibatches for part in parts]
        lasting = [self._lasting(costs, every, at, trains) for trains in ways]
        for parts in of_minibatches:
            found += sum(max(next(of) for _ in parts) for of in lasting)
            found += once + max(map(len, parts)) * self._between_passes(role, config, at, passes=2)
        return found * self.workload.passes

    def _predicting(self, role: str, costs: ModelCosts, config: ModelConfig, at: _Arranged, tokens: int) -> float:
        parts = self.workload.predicted(at.layout.dp, tokens, self._shares(role))
        slowest, count = max(self._lasting(costs, parts, at, trains=False)), max(map(len, parts))
        return costs.once("inference") + slowest + count * self._between_passes(role, config, at, passes=1)

    def _generating(self, call: MFC, costs: ModelCosts, config: ModelConfig, at: _Arranged, tokens: int) -> float:
        pp, link, role = at.layout.pp, self._line(at).send, call.role
        found = [0.0]
        parts, slots = self.workload.heaviest(at.layout.dp), slots_of(self.experiment, role)
        drawn = drawn_by(call, self.experiment, costs.config.max_positions)
        of_parts = self.workload.generated(at.layout.dp, pp, slots, tokens, drawn)
        for rows, part in zip(parts, of_parts, strict=True):
            moved = costs.sent(np.where(part.tokens_V > 0, part.tokens_V, part.rows_V))
            sent = (link.latency_ns + moved / link.bytes_per_s * 1e9) * (part.rows_V > 0) * (pp > 1)
            once = costs.once("generation") if rows else 0.0
            found.append(once + visits_duration(costs.visits(part), sent, part))
        return max(found) + self._between_passes(role, config, at, passes=1)

    def _blending(self, role: str, config: ModelConfig, at: _Arranged) -> float:
        numel = self._numel(role, config, at.layout, at.backend)
        return numel / at.layout.dp * 3 * state_size(config.dtype) / self.rates.bytes_per_s * 1e9

    def _lasting(
        self, costs: ModelCosts, parts: Sequence[MicroBatches], at: _Arranged, trains: bool
    ) -> Iterator[float]:
        """How long the passes of each part last."""
        kinds: tuple[Pass, ...] = ("taught", "backward") if trains else ("forward",)
        link, passes = self._line(at).send, [costs.passes(of, parts) for of in kinds]
        for part, forward, *backward in zip(parts, *passes, strict=True):
            sent = link.latency_ns + costs.sent(part.tokens_M) / link.bytes_per_s * 1e9
            yield duration(Played(forward, backward[0] if backward else None, sent))

    def _updating(self, role: str, costs: ModelCosts, config: ModelConfig, at: _Arranged) -> float:
        """Adding gradients up, an update, and parameters to all who compute with them."""
        elements = self._numel(role, config, at.layout, at.backend, trained=True)
        own, state, size = elements / at.dp.size, state_size(config.dtype), BYTES[config.dtype]
        found = costs.update(own)
        if at.dp.size > 1:
            found += scattered(at.dp, elements * state, self.rates) + SUMS * gathered(at.dp, 64, self.rates)
            if not _shards(at.backend, at.layout):
                found += gathered(at.dp, elements * size, self.rates)
        if at.tp.size > 1:
            found += SUMS * gathered(at.tp, 64, self.rates)
        if at.layout.pp > 1:
            found += SUMS * self._line(at).send.latency_ns + self._tied(costs, at)
        if isinstance(config, TrainedModelConfig) and config.offload != "none":
            found += self.rates.host.nanoseconds(own * (state + size), 2)
            found += own * 7 * state / self.rates.host.bytes_per_s * 1e9
        return found

    def _tied(self, costs: ModelCosts, at: _Arranged) -> float:
        """The gradient of an embedding that the first stage and the last have."""
        if not costs.config.shares_embedding or costs.config.adapters is not None:
            return 0.0
        numbers = costs.config.vocabulary_size * costs.config.hidden_size / at.tp.size
        return self._line(at).send.nanoseconds(numbers * state_size(costs.dtype))

    def _between_passes(self, role: str, config: ModelConfig, at: _Arranged, passes: int) -> float:
        """Of a model of which each worker has its part of every parameter: gathering the others' for a micro-batch."""
        if not _shards(at.backend, at.layout):
            return 0.0
        whole = self._numel(role, config, at.layout, "") * BYTES[config.dtype]
        found = passes * gathered(at.dp, whole, self.rates)
        if config.offload == "parameters":
            found += passes * self.rates.host.nanoseconds(whole / at.dp.size)
        each = backend_of(at.backend).adds_up == "micro_batch" or getattr(config, "reduce", "") == "micro_batch"
        return found + (passes > 1) * each * scattered(at.dp, whole, self.rates)

    def _line(self, at: _Arranged) -> Links:
        return self.rates.far if at.far_stages else self.rates.near

    def _rows(self, at: _Arranged) -> float:
        """Of a part's rows to the worker that heads it, and of what it gives back."""
        return self.rates.near.send.nanoseconds(self.workload.tokens / at.layout.dp * ROW_BYTES)

    def _shares(self, role: str) -> bool:
        """Whether a prompt that texts share goes through the model once."""
        return not isinstance(self.models[role], ForeignConfig)

    # Memory

    def _stages(self, call: MFC, config: ModelConfig, place: Placed) -> tuple[Stage, ...]:
        replica, memories = self._memories(call, config, place)
        device, is_moved = self.experiment.cluster.device, call.role in self._changed
        found = tuple(stage_of(call, memory, replica, device, is_moved) for memory in memories)
        if not call.blends:
            return found
        replica, memories = self._memories(self._homes[call.blends], self._configs[call.blends], place)
        theirs = [ceil(away(replica, memory, NEEDED["blend"], device)) for memory in memories]
        return tuple(it._replace(passing=it.passing + of) for it, of in zip(found, theirs, strict=True))

    def _memories(self, call: MFC, config: ModelConfig, place: Placed) -> tuple[ReplicaPlan, tuple[Memory, ...]]:
        """Of a call's model, for this call alone."""
        at_home = bool(call.changes) or call.role not in self._changed
        of = shared_with(self.experiment, call.role)
        replica = ReplicaPlan(
            ModelName(call.role, 0 if at_home else 1),
            str(place.layout),
            place.ranks,
            trainable=call.kind == "train_step",
            backend=place.backend,
            sharded=_shards(place.backend, place.layout),
            served=server_of(place.backend) is not None,
            of=of,
        )
        there = config if at_home and not of else as_frozen(config)
        return replica, replica_memory(self.experiment, replica, there, self.models[call.role], {call.kind})


def _shards(backend: str, layout: Layout) -> bool:
    return layout.dp > 1 and bool(backend and cut_by(backend))


def _teaches_routers(model: DecoderConfig, config: ModelConfig) -> bool:
    """Whether a pass without gradients asks all routers first."""
    is_trained = isinstance(config, TrainedModelConfig) and bool(config.router_aux_coef or config.router_z_coef)
    return is_trained and model.experts is not None


def read_costs(
    experiment: Any, rates: Rates, workload: Workload, measured: Mapping[str, int] | None = None
) -> CostModel:
    """The cost model of an experiment. Reads each model's config.json."""
    algorithm = algorithm_of(experiment)
    models = {
        role: head_model(role, config, algorithm)
        for role, config in models_held(experiment).items()
        if role in algorithm.called(experiment)
    }
    return CostModel(experiment, models, rates, workload, measured or {})
