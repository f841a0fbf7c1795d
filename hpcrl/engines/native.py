"""hpcrl's own training backend: one flat gradient, accumulated over micro-batches, and AdamW sharded over dp ranks."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.engine import Columns, Loss, Predictions, Sequences, Shard, Totals, TrainResult, take_rows
from hpcrl.engines.flat import FlatTransformer
from hpcrl.engines.inference import EngineContext, InferenceEngine, micro_batches
from hpcrl.engines.layout import ParameterLayout
from hpcrl.errors import InternalError


class NativeEngine(InferenceEngine):
    """Owns model, gradient and optimizer of one role."""

    def __init__(self, model: FlatTransformer, site: EngineContext, optimizer: OptimizerConfig) -> None:
        super().__init__(model, site)
        memory = model.memory
        if memory.grad is None:
            raise ValueError(f"{site.name}'s model was built without gradients; build it with trainable=True")
        self._gradient = memory.grad
        undecayed = [(offset, parameter.numel) for parameter, offset in memory.layout.spans() if not parameter.decays]
        self._optimizer = ShardedAdamW(site.name, memory.data, undecayed, site.group, optimizer)

    def load(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill model and masters by name. Masters take the parameters as they come, not rounded to the model's type."""
        self._model.load(self._into_masters(parameters))

    def train_batch(
        self,
        sequences: Sequences,
        columns: Columns,
        loss: Loss,
        learning_rate: float,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        accept: Callable[[Totals], bool] | None = None,
    ) -> TrainResult:
        self._model.zero_grad()
        sums = _Sums(self.total)
        for rows in micro_batches(sequences.lengths, self._site.micro_batch_tokens):
            part = sequences.select(rows)
            predictions = self._predict(part, temperature, with_entropy)
            share, statistics = loss(predictions, self._columns(columns, sequences, rows))
            share.backward()
            sums.add(share, statistics)
        if not len(sequences):
            sums.add(*loss(self._nothing(), self._columns(columns, sequences, [])))
        totals = sums.totals()
        if accept is not None and not accept(totals):
            return TrainResult(totals, None)
        return TrainResult(totals, self._optimizer.step(self._gradient, learning_rate))

    def state(self) -> Shard:
        arrays, numbers = self._optimizer.state()
        return arrays, {**numbers, "layout": _fingerprint(self._model.memory.layout)}

    def load_state(self, shards: Iterable[Shard]) -> None:
        self._optimizer.load_state(self._checked(shard) for shard in shards)

    def digest(self) -> str:
        return self._optimizer.digest()

    def _memory(self) -> list[torch.Tensor]:
        return [*super()._memory(), self._gradient, *self._optimizer.tensors()]

    def _into_masters(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        offsets = {parameter.name: offset for parameter, offset in self._model.memory.layout.spans()}
        for name, tensor in parameters:
            yield name, tensor
            # The model has found name and shape right before it asks for the next one.
            self._optimizer.begin_from(tensor, offsets[name])

    def _columns(self, columns: Columns, sequences: Sequences, rows: list[int]) -> Mapping[str, torch.Tensor]:
        return {
            name: torch.from_numpy(take_rows(column, sequences.labels, rows)).to(self._model.device, self._wide)
            for name, column in columns.items()
        }

    def _nothing(self) -> Predictions:
        nothing = torch.zeros(0, dtype=self._wide, device=self._model.device)
        return Predictions(nothing, nothing, nothing)

    @property
    def _wide(self) -> torch.dtype:
        """What losses are computed in."""
        return torch.promote_types(self._model.dtype, torch.float32)

    def _checked(self, shard: Shard) -> Shard:
        written, own = shard[1]["layout"], _fingerprint(self._model.memory.layout)
        if written != own:
            raise InternalError(
                f"{self._site.name}: the checkpoint's parameters are laid out as {written}, the model's as {own}; "
                f"{self._site.name}.path holds another model than the run began with"
            )
        return shard


class _Sums:
    """Statistics of micro-batches added up in float64."""

    def __init__(self, total: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._total = total
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, loss: torch.Tensor, statistics: Mapping[str, torch.Tensor]) -> None:
        for name, value in {"loss": loss, **statistics}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach().double()

    def totals(self) -> Totals:
        names = sorted(self._sums)
        return dict(zip(names, self._total(torch.stack([self._sums[name] for name in names])).tolist(), strict=True))


def _fingerprint(layout: ParameterLayout) -> str:
    text = "\n".join(f"{parameter.name} {parameter.shape} {offset}" for parameter, offset in layout.spans())
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
