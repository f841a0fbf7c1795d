"""A model that is not trained: parameters only, neither gradients nor optimizer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hpcrl.config.generation import GenerationConfig
from hpcrl.engines.engine import Predictions, Sequences, Writer
from hpcrl.engines.flat import FlatTransformer
from hpcrl.errors import InternalError
from hpcrl.models.generation import Generated, GenerationOptions, Generator
from hpcrl.models.packing import Packing
from hpcrl.models.pretrained import save_pretrained
from hpcrl.models.sampling import SamplingOptions
from hpcrl.parallel.context import Group


@dataclass(frozen=True)
class EngineContext:
    """What an engine is told of its role. `group` are its data-parallel ranks; `name` is for messages.

    The files of the tokenizer's folder go with an export. A forward pass takes at most `micro_batch_tokens` tokens.
    """

    name: str
    tokenizer: Path
    group: Group
    micro_batch_tokens: int
    eos_token_ids: tuple[int, ...] = ()


class InferenceEngine:
    """Owns the model's memory on its device."""

    def __init__(self, model: FlatTransformer, site: EngineContext) -> None:
        self._model = model
        self._site = site
        self._group = site.group
        self._parked: list[torch.Tensor] = []

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        return self._group.total(vector)

    @torch.no_grad()
    def forward(self, sequences: Sequences, temperature: float = 1.0) -> np.ndarray:
        predicted: list[np.ndarray] = [np.zeros(0, np.float32)] * len(sequences)
        for rows in micro_batches(sequences.lengths, self._site.micro_batch_tokens):
            part = sequences.select(rows)
            predictions = self._predict(part, temperature, with_entropy=False)
            numbers = (predictions.values if self._is_critic else predictions.log_probs).float().cpu().numpy()
            for row, of_row in zip(rows, np.split(numbers, np.cumsum(part.labels)[:-1]), strict=True):
                predicted[row] = of_row
        return self._finite("values" if self._is_critic else "log-probabilities", predicted)

    def generate(self, prompts: Sequence[np.ndarray], seeds: Sequence[int], config: GenerationConfig) -> Generated:
        if not prompts:
            return Generated([], [], [])
        options = GenerationOptions(
            max_new_tokens=config.max_new_tokens,
            min_new_tokens=config.min_new_tokens,
            sampling=SamplingOptions(config.temperature, config.top_k, config.top_p, config.greedy),
            eos_token_ids=self._site.eos_token_ids,
            slots=config.slots,
            prefill_tokens=self._site.micro_batch_tokens,
        )
        generated = Generator(self._model, options).generate(prompts, seeds)
        self._finite("log-probabilities of sampled tokens", generated.logprobs)
        return generated

    def export(self) -> Writer | None:
        if self._group.index != 0:
            return None
        config, memory = self._model.config, self._model.memory
        tensors = dict(memory.cut(memory.data.to("cpu", copy=True)))
        return lambda folder: save_pretrained(folder, config, tensors, tokenizer_from=self._site.tokenizer)

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

    def _finite(self, what: str, rows: Sequence[np.ndarray]) -> np.ndarray:
        """All rows one after another. Raises InternalError where a number is not finite: the model has diverged."""
        numbers = np.concatenate([np.zeros(0, np.float32), *rows])
        if wrong := int((~np.isfinite(numbers)).sum()):
            raise InternalError(
                f"{self._site.name}: {wrong} of {len(numbers)} {what} are not finite; the model has diverged, or "
                f"{self._site.name}.path has such weights. Lower {self._site.name}.optimizer.lr where it is trained, "
                "and resume from an earlier checkpoint"
            )
        return numbers

    @property
    def _is_critic(self) -> bool:
        return self._model.config.head == "value"

    def _memory(self) -> list[torch.Tensor]:
        """All that the engine holds on its device, as tensors that own their storage."""
        return [self._model.memory.data]

    def _predict(self, sequences: Sequences, temperature: float, with_entropy: bool) -> Predictions:
        """Predictions of the labels; the last token of a sequence predicts none, so the model never sees it."""
        model, nothing = self._model, torch.zeros(0, device=self._model.device)
        ends = np.cumsum(sequences.lengths)
        inputs = torch.from_numpy(np.delete(sequences.tokens, ends - 1)).to(model.device, torch.int64)
        packing = Packing.of((sequences.lengths - 1).tolist(), model.device)
        hidden = model.hidden(inputs, packing, packing.tail_rows(sequences.labels.tolist()))
        if self._is_critic:
            return Predictions(nothing, nothing, model.values(hidden))
        rows = [np.arange(end - count, end) for end, count in zip(ends, sequences.labels, strict=True)]
        labels = torch.from_numpy(sequences.tokens[np.concatenate(rows)]).to(model.device, torch.int64)
        log_probs, entropy = model.logprobs(hidden, labels, temperature=temperature, with_entropy=with_entropy)
        return Predictions(log_probs, nothing if entropy is None else entropy, nothing)


def micro_batches(lengths: np.ndarray, tokens: int) -> Iterator[list[int]]:
    """Rows in groups of at most `tokens` tokens (or of one longer row), longest first: equal lengths stand together."""
    batch: list[int] = []
    held = 0
    for row in np.argsort(-lengths, kind="stable").tolist():
        if batch and held + lengths[row] > tokens:
            yield batch
            batch, held = [], 0
        batch.append(row)
        held += int(lengths[row])
    if batch:
        yield batch
