"""An engine of a model that predicts, an updater that trains it, and a sampler: micro-batches, releases, saving."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import numpy as np
import torch

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import Between, LoraConfig, ModelConfig, TrainedModelConfig, lora_of
from hpcrl.durable.shards import ShardFile
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.adapters import AdaptedModel, adapted_in_flat_buffers
from hpcrl.engines.checksum import digest_of, digest_of_parts
from hpcrl.engines.engine import (
    KINDS,
    Columns,
    Decision,
    EngineContext,
    Held,
    Kind,
    Objective,
    Sequences,
    Totals,
    TrainResult,
    Update,
)
from hpcrl.engines.flat import FlatTransformer
from hpcrl.engines.foreign import FlatForeign
from hpcrl.engines.masters import MasterState, ShardedMasters
from hpcrl.engines.memory import HeldModel, ParameterMemory
from hpcrl.engines.model import PackedModel, finite
from hpcrl.engines.pipeline import Pipeline
from hpcrl.engines.release import DeviceBuffers
from hpcrl.engines.sampler import Sampler
from hpcrl.engines.shard import CopiedShard, Shard
from hpcrl.engines.shared_shards import SharedShards
from hpcrl.engines.sums import Sums
from hpcrl.engines.teaching import taught_routers
from hpcrl.engines.updater import Updater
from hpcrl.families.adapters import with_adapters
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.spaces import Space, space_of
from hpcrl.models.history import Generated
from hpcrl.models.kernels import Kernels
from hpcrl.models.lessons import RouterLoss
from hpcrl.models.output import Predictions
from hpcrl.models.pretrained import load_adapters, load_pretrained
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups
from hpcrl.workers.meter import Meter

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
NO_ROUTER_LOSS = RouterLoss()


class ComposedEngine:
    """Fulfils `Engine` and `EngineState`. `state` is an `Updater` where the role is trained, None where it is frozen.

    A forward pass takes at most `micro_batch_tokens` tokens.
    """

    optimizer: type[ShardedAdamW] = ShardedAdamW
    """Of roles that are trained."""

    def __init__(
        self,
        model: PackedModel,
        sampler: Sampler,
        state: MasterState | None,
        *,
        groups: ReplicaGroups,
        kernels: Kernels,
        micro_batch_tokens: int,
        router_loss: RouterLoss = NO_ROUTER_LOSS,
        meter: Meter | None = None,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._state = state
        self._groups = groups
        self._kernels = kernels
        self._router_loss = router_loss
        self._meter = meter or Meter()
        self._pipeline = Pipeline(model, groups.pp, micro_batch_tokens, groups.dp, self._meter)
        memory = model.transformer.memory
        self._buffers = DeviceBuffers(
            {
                "parameters": model.transformer.tensors(),
                "gradients": model.transformer.gradients(),
                "optimizer": [] if state is None else state.tensors(),
            },
            memory.layers(),
        )
        model.transformer.awaited = self._buffers.awaited

    @classmethod
    def over_flat_buffers(cls, context: EngineContext) -> "ComposedEngine":
        """The model of a role's folder, of which this rank has its whole cut. Raises DataError where the folder holds
        no such model."""
        config, trained = context.model, context.steps is not None
        model, parameters = pretrained(context)
        if trained and (lora := lora_of(config)) is not None:
            return cls.with_adapters(context, model, lora, parameters, adapted_in_flat_buffers)
        groups = context.groups
        held: dict[str, Any] = {"dtype": DTYPES[config.dtype], "device": context.device, "trainable": trained}
        held["offloaded"] = context.offloaded
        if isinstance(model, ForeignConfig):
            return cls.around(context, FlatForeign(model, dp=groups.dp, **held), parameters)
        return cls.around(context, FlatTransformer(model, cut=groups.cut, tensor=groups.tp, **held), parameters)

    @classmethod
    def with_adapters(
        cls,
        context: EngineContext,
        model: DecoderConfig,
        lora: LoraConfig,
        parameters: Iterable[tuple[str, torch.Tensor]],
        made: Callable[[DecoderConfig, ReplicaGroups, torch.dtype, torch.device], AdaptedModel],
    ) -> "ComposedEngine":
        """Of a `model` of which adapters alone are trained, and the `parameters` of the one without; how it is `made`
        is the backend's affair. Raises DataError where it cannot be."""
        adapted = with_adapters(model, lora)
        beside = dict(load_adapters(adapted, lora.path, seed=context.seed, readers=context.groups.readers))
        transformer = made(adapted, context.groups, DTYPES[context.model.dtype], context.device)
        frozen = (it for it in parameters if it[0] not in beside)  # a head comes with its adapters
        return cls.around(context, transformer, chain(frozen, beside.items()))

    @classmethod
    def around(
        cls, context: EngineContext, transformer: HeldModel, parameters: Iterable[tuple[str, torch.Tensor]]
    ) -> "ComposedEngine":
        """Of a role's model, which is empty, and what is to be loaded into it."""
        config = context.model
        context.told_of_padding(transformer.padded_because)
        transformer.recompute = isinstance(config, TrainedModelConfig) and config.recompute
        model = PackedModel(context.role, transformer)
        ends = tuple(dict.fromkeys((*context.eos_token_ids, *transformer.config.eos_token_ids)))
        engine = cls(
            model,
            Sampler(model, config.micro_batch_tokens, ends, context.tokenizer, context.groups.pp, context.meter),
            _state(context, transformer.memory, cls.optimizer),
            groups=context.groups,
            kernels=context.kernels,
            micro_batch_tokens=config.micro_batch_tokens,
            router_loss=_router_loss(config),
            meter=context.meter,
        )
        if not context.empty or transformer.has_adapters:
            size = sum(tensor.nbytes for tensor in transformer.tensors() or [transformer.memory.data])
            engine.fill(_told(parameters, size, context))
        return engine

    def fill(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Give model and masters their first values, by name."""
        self._buffers.need("parameters", "optimizer")
        self._model.transformer.load(parameters if self._state is None else self._state.begin_from(parameters))

    def without_adapters(self) -> AbstractContextManager[None]:
        """Within it the model is what it was before it was trained."""
        return self._model.transformer.without_adapters()

    # What an algorithm may ask

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        return self._groups.total(vector)

    def forward(self, sequences: Sequences, temperature: float = 1.0) -> np.ndarray:
        self._buffers.read()
        nothing = np.zeros(0, self._model.number)
        predicted: list[np.ndarray] = [nothing] * len(sequences)
        for rows, predictions in self._pipeline.predict(sequences, temperature):
            ends = np.cumsum(sequences.labels[rows])[:-1]
            for row, of_row in zip(rows, np.split(self._model.numbers(predictions), ends), strict=True):
                predicted[row] = of_row
        numbers = self._pipeline.told(np.concatenate([nothing, *predicted]), int(sequences.labels.sum()))
        return finite(self._model.role, "values" if self._model.gives_values else "log-probabilities", numbers)

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        seeds: Sequence[int],
        config: GenerationConfig,
        begun: Sequence[np.ndarray] | None = None,
        limits: Sequence[int] | None = None,
    ) -> Generated:
        self._buffers.read()
        with self._kernels.generating(), self._model.transformer.gathered():
            return self._sampler.generate(prompts, seeds, config, begun, limits)

    def train_batch(
        self,
        sequences: Sequences,
        columns: Columns,
        objective: Objective,
        at: Update,
        decided: Decision | None = None,
    ) -> TrainResult:
        updater = self._training
        self._buffers.read()
        self._buffers.need("gradients")
        with taught_routers(self._router_loss, self._model, self._pipeline, self._groups, sequences) as told:
            sums = self._gradients(sequences, columns, objective)
            of_routers = told()
        self._buffers.need(*KINDS)
        with self._meter.timing("optimizer"):
            self._model.transformer.add_up_gradients()
            self._pipeline.share_embedding()
            loss, totals = sums.totals()
            decision = decided or updater.decide(at, refused=_refuses(objective, totals))
            decision, norm = updater.follow(decision, in_replay=decided is not None)
        return TrainResult(loss + of_routers.loss, {**totals, **of_routers.totals}, decision, norm)

    # What the host may ask

    @property
    def space(self) -> Space:
        return space_of(self._model.transformer.config)

    @property
    def attention(self) -> str:
        return self._model.transformer.attention_kernels

    def snapshot(self) -> CopiedShard:
        return self._saved.snapshot(self._buffers.copied).with_state(space=self.space)

    def shared(self, shards: Sequence[ShardFile]) -> SharedShards:
        return self._saved.shared(shards, self._groups)

    def load(self, shards: Iterable[Shard]) -> bool:
        self._buffers.need("parameters", "optimizer")
        return self._saved.load(shards)

    def settle(self, model: ModelConfig, steps: int) -> None:
        assert isinstance(model, TrainedModelConfig), self._model.role
        self._training.settle(model.optimizer, steps)

    def blend(self, theirs: torch.Tensor, decay: float) -> None:
        self._buffers.need("parameters", "optimizer")
        self._saved.blend(theirs, decay)

    def masters(self) -> tuple[DecoderConfig, torch.Tensor]:
        self._buffers.need("parameters", "optimizer")
        transformer = self._model.transformer
        if isinstance(transformer, AdaptedModel):
            return transformer.config, transformer.masters(self._groups.dp)
        return transformer.config, self._saved.masters.to(transformer.device)

    def digest(self) -> str:
        self._buffers.need("parameters", "optimizer")
        return self._saved.digest()

    def digest_of(self, shards: Sequence[Shard]) -> str:
        return self._saved.digest_of(shards)

    def flat(self) -> tuple[DecoderConfig, torch.Tensor]:
        self._buffers.need("parameters")
        return self._model.transformer.config, self._model.transformer.memory.weights()

    def parameters_digest(self) -> str:
        self._buffers.need("parameters")
        transformer, groups = self._model.transformer, self._groups
        if (merged := transformer.merged(groups.dp.index, groups.dp.size)) is not None:
            return digest_of_parts((([tensor], spans) for tensor, spans in merged), 1, groups.total_of_shares)
        if self._state is not None:
            return self._state.parameters_digest()
        total = groups.total_of_shares if transformer.in_step else groups.block.total
        return digest_of([transformer.memory.weights()], transformer.memory.spans, total)

    def release(self, between: Mapping[Kind, Between]) -> None:
        for kind, how in between.items():
            self._buffers.release(kind, how)

    def held(self) -> Held:
        return self._buffers.held()

    def cut(self, micro_batch_tokens: int) -> None:
        self._pipeline.micro_batch_tokens = self._sampler.prefill_tokens = micro_batch_tokens

    @property
    def _training(self) -> Updater:
        assert isinstance(self._state, Updater), f"{self._model.role} is not trained"
        return self._state

    @property
    def _saved(self) -> MasterState:
        assert self._state is not None, f"{self._model.role} is frozen"
        return self._state

    @property
    def _together(self) -> Group:
        """Who computes a gradient together."""
        return self._groups.dp if self._trains_in_step else self._groups.block

    @property
    def _trains_in_step(self) -> bool:
        return self._model.transformer.in_step or self._model.transformer.trains_in_step

    def _anyone(self, so: bool) -> bool:
        """Whether something is so on any of them."""
        return bool(self._together.total(torch.tensor([int(so)])))

    def _gradients(self, sequences: Sequences, columns: Columns, objective: Objective) -> Sums:
        """As `_backward`, by kernels that give the same bits every time."""
        if not len(sequences) and not self._trains_in_step:
            return self._backward(sequences, columns, objective)
        anyone = None if self._together.size == 1 else self._anyone
        return self._kernels.gradients(
            self._model.role,
            lambda: self._backward(sequences, columns, objective),
            self._training.gradient_bits,
            anyone,
        )

    def _backward(self, sequences: Sequences, columns: Columns, objective: Objective) -> Sums:
        """This rank's gradient, and its share of the statistics: nothing on another stage than the last."""
        sums = Sums(self.total)

        def loss(rows: list[int], predictions: Predictions) -> torch.Tensor:
            share, statistics = objective.loss(predictions, self._model.columns(columns, sequences, rows))
            sums.add(share, statistics)
            return share

        self._training.clear()
        if (lessons := self._model.transformer.lessons) is not None:
            lessons.forget()
        self._pipeline.train(sequences, objective.temperature, objective.with_entropy, loss)
        self._model.transformer.memory.collect_grad()
        if not sums:
            sums.add(*objective.loss(self._model.nothing(), self._model.columns(columns, sequences, [])))
        return sums


def pretrained(context: EngineContext) -> tuple[DecoderConfig, Iterator[tuple[str, torch.Tensor]]]:
    """What this rank holds of the model of a role's folder, and the parameters to load. Raises DataError."""
    config = context.model
    return load_pretrained(
        config.path,
        family=config.family,
        kind=config.model,
        experts=config.experts,
        head=context.head,
        seed=context.seed,
        trained=context.steps is not None,
        readers=context.groups.readers,
    )


def _router_loss(config: ModelConfig) -> RouterLoss:
    if not isinstance(config, TrainedModelConfig):
        return NO_ROUTER_LOSS
    return RouterLoss(config.router_aux_coef, config.router_z_coef)


def _state(context: EngineContext, memory: ParameterMemory, optimizer: type[ShardedAdamW]) -> MasterState | None:
    """What changes of a role, and is saved; None where nothing does."""
    if context.steps is not None:
        assert isinstance(context.model, TrainedModelConfig), context.role
        return Updater(context.role, memory, context.groups, context.model.optimizer, context.steps, optimizer)
    if not context.blended:
        return None
    masters = ShardedMasters(context.role, memory.slice(context.groups.dp), context.groups)
    return MasterState(context.role, memory, masters)


def _told(
    parameters: Iterable[tuple[str, torch.Tensor]], of: int, context: EngineContext
) -> Iterator[tuple[str, torch.Tensor]]:
    """The same, while whoever waits is told how much of the model is there."""
    read = 0
    for name, tensor in parameters:
        yield name, tensor
        read += tensor.numel() * DTYPES[context.model.dtype].itemsize
        context.told(f"loading {context.role}, {min(read, of) / 2**30:.1f} of {of / 2**30:.1f} GiB")


def _refuses(objective: Objective, totals: Totals) -> bool:
    """Judged by means; what nothing was added to has none, and is not a number."""
    if objective.refuses is None:
        return False
    return objective.refuses({name: total / weight if weight else math.nan for name, (total, weight) in totals.items()})
