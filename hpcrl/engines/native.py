"""hpcrl's own engine: a whole model in flat buffers, micro-batches, AdamW sharded over data-parallel ranks."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig, TrainedModelConfig
from hpcrl.data.micro_batches import micro_batches
from hpcrl.engines.engine import (
    Columns,
    Decision,
    EngineContext,
    EngineState,
    Objective,
    Sequences,
    Shard,
    Statistic,
    Totals,
    TrainResult,
    Update,
    Writer,
)
from hpcrl.engines.flat import FlatParameters, open_model
from hpcrl.engines.masters import MasterState, ShardedMasters
from hpcrl.engines.model import PackedModel, finite
from hpcrl.engines.sampler import Sampler
from hpcrl.engines.updater import Updater
from hpcrl.models.generation import Generated
from hpcrl.models.kernels import Kernels
from hpcrl.models.output import Predictions
from hpcrl.models.pretrained import save_pretrained
from hpcrl.parallel.context import Group

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


class NativeEngine:
    """Fulfils `Engine` and `EngineState`. `state` is an `Updater` where the role is trained, None where it is frozen.

    A forward pass takes at most `micro_batch_tokens` tokens; the files of `tokenizer` go with an export.
    """

    def __init__(
        self,
        model: PackedModel,
        sampler: Sampler,
        state: MasterState | None,
        *,
        group: Group,
        kernels: Kernels,
        micro_batch_tokens: int,
        tokenizer: Path,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._state = state
        self._group = group
        self._kernels = kernels
        self._micro_batch_tokens = micro_batch_tokens
        self._tokenizer = tokenizer
        self._parked: list[torch.Tensor] = []

    @classmethod
    def open(cls, context: EngineContext) -> "NativeEngine":
        """The model of a role's folder. Raises DataError where the folder holds no such model."""
        config, trained = context.model, context.steps is not None
        transformer, parameters = open_model(
            config.path,
            family=config.family,
            head=context.head,
            seed=context.seed,
            trained=trained,
            dtype=DTYPES[config.dtype],
            device=context.device,
            trainable=trained,
        )
        model = PackedModel(context.role, transformer)
        ends = tuple(dict.fromkeys((*context.eos_token_ids, *transformer.config.eos_token_ids)))
        engine = cls(
            model,
            Sampler(model, config.micro_batch_tokens, ends, context.tokenizer),
            _state(context, transformer.memory),
            group=context.group,
            kernels=context.kernels,
            micro_batch_tokens=config.micro_batch_tokens,
            tokenizer=context.tokenizer,
        )
        engine.fill(_told(parameters, transformer.memory.data.nbytes, context))
        return engine

    def fill(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Give model and masters their first values, by name."""
        self._model.transformer.load(parameters if self._state is None else self._state.begin_from(parameters))

    # What an algorithm may ask

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        return self._group.total(vector)

    @torch.no_grad()
    def forward(self, sequences: Sequences, temperature: float = 1.0) -> np.ndarray:
        predicted: list[np.ndarray] = [np.zeros(0, np.float32)] * len(sequences)
        for rows, predictions in self._micro_batches(sequences, temperature, with_entropy=False):
            ends = np.cumsum(sequences.labels[rows])[:-1]
            for row, of_row in zip(rows, np.split(self._model.numbers(predictions), ends), strict=True):
                predicted[row] = of_row
        return finite(self._model.role, "values" if self._model.gives_values else "log-probabilities", predicted)

    def generate(self, prompts: Sequence[np.ndarray], seeds: Sequence[int], config: GenerationConfig) -> Generated:
        return self._sampler.generate(prompts, seeds, config)

    def train_batch(
        self,
        sequences: Sequences,
        columns: Columns,
        objective: Objective,
        at: Update,
        decided: Decision | None = None,
    ) -> TrainResult:
        updater = self._training
        if len(sequences):
            role, bits = self._model.role, updater.gradient_bits
            sums = self._kernels.gradients(role, lambda: self._backward(sequences, columns, objective), bits)
        else:
            sums = self._backward(sequences, columns, objective)
        loss, totals = sums.totals()
        decision = decided or updater.decide(at, refused=_refuses(objective, totals))
        decision, norm = updater.follow(decision, in_replay=decided is not None)
        return TrainResult(loss, totals, decision, norm)

    # What the host may ask

    def snapshot(self) -> Shard:
        return self._saved.snapshot()

    def load(self, shards: Iterable[Shard]) -> None:
        self._saved.load(shards)

    def settle(self, model: ModelConfig, steps: int) -> None:
        assert isinstance(model, TrainedModelConfig), self._model.role
        self._training.settle(model.optimizer, steps)

    def blend(self, source: EngineState, decay: float) -> None:
        assert isinstance(source, NativeEngine), source
        self._saved.blend(source._saved, decay)

    def digest(self) -> str:
        return self._saved.digest()

    def export(self) -> Writer | None:
        if self._group.index != 0:
            return None
        config, tensors = self._model.transformer.config, dict(self._model.copied())
        return lambda folder: save_pretrained(folder, config, tensors, tokenizer_from=self._tokenizer)

    def release(self) -> None:
        self._parked = [tensor.to("cpu", copy=True) for tensor in self._memory()]
        for tensor in self._memory():
            tensor.untyped_storage().resize_(0)

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, parked in zip(self._memory(), self._parked, strict=True):
            tensor.untyped_storage().resize_(parked.untyped_storage().nbytes())
            tensor.copy_(parked)
        self._parked = []

    @property
    def _training(self) -> Updater:
        assert isinstance(self._state, Updater), f"{self._model.role} is not trained"
        return self._state

    @property
    def _saved(self) -> MasterState:
        assert self._state is not None, f"{self._model.role} is frozen"
        return self._state

    def _backward(self, sequences: Sequences, columns: Columns, objective: Objective) -> "_Sums":
        """This rank's gradient, and its share of the statistics."""
        sums = _Sums(self.total)
        self._training.clear()
        for rows, predictions in self._micro_batches(sequences, objective.temperature, objective.with_entropy):
            loss, statistics = objective.loss(predictions, self._model.columns(columns, sequences, rows))
            loss.backward()
            sums.add(loss, statistics)
        if not len(sequences):
            sums.add(*objective.loss(self._model.nothing(), self._model.columns(columns, sequences, [])))
        return sums

    def _micro_batches(
        self, sequences: Sequences, temperature: float, with_entropy: bool
    ) -> Iterator[tuple[list[int], Predictions]]:
        """The rows of each micro-batch, and what the model predicts of them."""
        of, bound = sequences, self._micro_batch_tokens
        for rows in micro_batches(of.lengths, of.samples, of.prompts, of.prompt_numbers(), bound):
            yield rows, self._model.forward(sequences.select(rows), temperature, with_entropy)

    def _memory(self) -> list[torch.Tensor]:
        """All that the engine holds on its device, as tensors that own their storage."""
        beside = [] if self._state is None else self._state.tensors()
        return [self._model.transformer.memory.data, *beside]


def _state(context: EngineContext, memory: FlatParameters) -> MasterState | None:
    """What changes of a role, and is saved; None where nothing does."""
    if context.steps is not None:
        assert isinstance(context.model, TrainedModelConfig), context.role
        return Updater(context.role, memory, context.group, context.model.optimizer, context.steps)
    if not context.blended:
        return None
    return MasterState(context.role, memory, ShardedMasters(context.role, memory.data, context.group))


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


class _Sums:
    """Losses and statistics of micro-batches added up in float64."""

    def __init__(self, total: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._total = total
        self._names: list[str] = []
        self._sums: torch.Tensor | float = 0.0

    def add(self, loss: torch.Tensor, statistics: Mapping[str, Statistic]) -> None:
        self._names = sorted(statistics)
        numbers = [loss, *(number for name in self._names for number in statistics[name])]
        self._sums = self._sums + torch.stack([number.detach().double() for number in numbers])

    def totals(self) -> tuple[float, Totals]:
        """The loss, and every statistic, of all ranks."""
        assert isinstance(self._sums, torch.Tensor), "something was added"
        loss, *numbers = self._total(self._sums).tolist()
        return loss, dict(zip(self._names, zip(numbers[::2], numbers[1::2], strict=True), strict=True))
