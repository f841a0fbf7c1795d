"""Micro-batches through the stages of a model, of which each rank has one. Knows neither losses nor optimizers.

All ranks of a block have the same sequences: each knows by itself how many rows a micro-batch has on its way.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from hpcrl.data.micro_batches import micro_batches
from hpcrl.data.pipeline_order import Exchange, inference_order, training_order
from hpcrl.engines.engine import Sequences
from hpcrl.engines.model import PackedModel
from hpcrl.models.output import Predictions
from hpcrl.parallel.group import Group, Pending
from hpcrl.placement.shards import EMBEDDING
from hpcrl.workers.meter import Meter

Loss = Callable[[list[int], Predictions], torch.Tensor]
"""(rows of a micro-batch, what the model predicts of their labels) → what is to be minimised."""

PIECE_BYTES = 64 * 2**20
"""What of a gradient is on its way at a time."""


class Pipeline:
    """A model whose stages the ranks of `pp` have; a micro-batch has at most `micro_batch_tokens` tokens.

    A model of one stage is whole, and its micro-batches go through it one after another. Where its data-parallel ranks
    compute in step, `dp`, they have equally many: who has fewer has empty ones besides.
    """

    def __init__(
        self,
        model: PackedModel,
        pp: Group,
        micro_batch_tokens: int,
        dp: Group | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._model = model
        self._meter = meter or Meter()
        self._pp = pp
        self._dp = dp
        self.micro_batch_tokens = micro_batch_tokens

    @torch.no_grad()
    def predict(self, sequences: Sequences, temperature: float) -> Iterator[tuple[list[int], Predictions]]:
        """The rows of each micro-batch, and what the model predicts of their labels: on the last stage alone."""
        batches = self._cut(sequences)
        run = _Run(self._model, self._pp, self._meter, sequences, batches, trains=False)
        for step in inference_order(self._pp.index, self._pp.size, len(batches)):
            if isinstance(step, Exchange):
                run.exchange(step)
            elif (predictions := run.forward(step.micro_batch, temperature)) is not None and batches[step.micro_batch]:
                yield batches[step.micro_batch], predictions
        run.finish()

    @torch.no_grad()
    def visit(self, sequences: Sequences) -> None:
        """All rows through all blocks, for what these note by themselves."""
        batches = self._cut(sequences)
        run = _Run(self._model, self._pp, self._meter, sequences, batches, trains=False)
        for step in inference_order(self._pp.index, self._pp.size, len(batches)):
            if isinstance(step, Exchange):
                run.exchange(step)
            else:
                run.pass_on(step.micro_batch)
        run.finish()

    def train(self, sequences: Sequences, temperature: float, with_entropy: bool, loss: Loss) -> None:
        """Add the gradient of all losses to that of the stage's parameters; the last stage alone asks for losses."""
        batches = self._cut(sequences, self._model.transformer.trains_in_step)
        run = _Run(self._model, self._pp, self._meter, sequences, batches, trains=True)
        for step in training_order(self._pp.index, self._pp.size, len(batches)):
            if isinstance(step, Exchange):
                run.exchange(step)
            elif step.kind == "backward":
                self._model.transformer.ends_minibatch(step.micro_batch == len(batches) - 1)
                run.backward(step.micro_batch)
            elif (predictions := run.forward(step.micro_batch, temperature, with_entropy)) is not None:
                rows = batches[step.micro_batch]
                # Of no rows, everything has a gradient of zero: the other ranks wait for it.
                run.left[step.micro_batch] = loss(rows, predictions) if rows else predictions.nothing()
                del predictions  # Their graph would outlive its backward pass, into the next forward pass.
        run.finish()

    @torch.no_grad()
    def share_embedding(self) -> None:
        """Add up the gradients that the first and the last stage have of the embedding, on both, where a tied head has
        it too."""
        transformer, ends = self._model.transformer, (0, self._pp.size - 1)
        shared = transformer.config.shares_embedding and not transformer.has_adapters
        if self._pp.size == 1 or self._pp.index not in ends or not shared:
            return
        gradient, other = transformer.gradient(EMBEDDING), ends[self._pp.index == 0]
        for own in gradient.view(-1).split(max(1, PIECE_BYTES // gradient.element_size())):
            theirs = torch.empty_like(own)
            self._pp.exchange([(own, other)], [(theirs, other)]).wait()
            own += theirs

    def told(self, numbers: np.ndarray, count: int) -> np.ndarray:
        """On all stages, the numbers of the last one, of which there are `count`; all have them in one type."""
        if self._pp.size == 1 or not count:
            return numbers
        is_last = self._pp.index == self._pp.size - 1
        known = torch.from_numpy(numbers if is_last else np.empty(count, numbers.dtype)).to(self._pp.device)
        self._pp.broadcast(known, self._pp.size - 1)
        return known.cpu().numpy()

    def _cut(self, sequences: Sequences, in_step: bool = False) -> list[list[int]]:
        of, bound = sequences, self.micro_batch_tokens
        batches = list(micro_batches(of.lengths, of.samples, of.prompts, self._model.prompt_numbers(of), bound))
        if self._dp is None or not (in_step or self._model.transformer.in_step):
            return batches
        counts = self._dp.gathered(torch.tensor([len(batches)], device=self._dp.device))
        return batches + [[] for _ in range(int(counts.max()) - len(batches))]


class _Run:
    """The micro-batches of one pass on this rank's stage: what each has been given and has left, until it is used."""

    def __init__(
        self,
        model: PackedModel,
        pp: Group,
        meter: Meter,
        sequences: Sequences,
        batches: Sequence[Sequence[int]],
        trains: bool,
    ) -> None:
        self._model = model
        self._pp = pp
        self._meter = meter
        self._sequences = sequences
        self._batches = batches
        self._trains = trains
        self._entered: dict[int, torch.Tensor] = {}
        self.left: dict[int, torch.Tensor] = {}
        """Rows for the next stage; on the last, losses."""
        self._gradients: dict[int, torch.Tensor] = {}
        self._selected: dict[int, Sequences] = {}
        self._on_the_way: Pending | None = None

    def forward(self, micro_batch: int, temperature: float, with_entropy: bool = False) -> Predictions | None:
        """Predictions, on the last stage."""
        if not self._model.transformer.cut.is_last:
            self.pass_on(micro_batch)
            return None
        sequences, given = self._begun(micro_batch)
        with self._meter.timing("forward"):
            return self._model.forward(sequences, temperature, with_entropy, given)

    def pass_on(self, micro_batch: int) -> None:
        """Leave rows for the next stage; on the last, for nobody."""
        sequences, given = self._begun(micro_batch)
        with self._meter.timing("forward"):
            rows = self._model.rows(sequences, given)
        if not self._model.transformer.cut.is_last:
            self.left[micro_batch] = rows

    def _begun(self, micro_batch: int) -> tuple[Sequences, torch.Tensor | None]:
        """A micro-batch, and the rows that it entered with. The operations of its backward pass count already."""
        given = self._entered.get(micro_batch) if self._trains else self._entered.pop(micro_batch, None)
        sequences = self._selected.pop(micro_batch, None) or self._sequences.select(self._batches[micro_batch])
        size = self._model.size(sequences)
        self._meter.count("micro_batches", 1)
        self._meter.rows(size.tokens, size.longest, size.forward + size.backward * self._trains)
        return sequences, given

    def backward(self, micro_batch: int) -> None:
        with self._meter.timing("backward"), self._model.transformer.going_back():
            self.left.pop(micro_batch).backward(self._gradients.pop(micro_batch, None))

    def exchange(self, step: Exchange) -> None:
        """Wait for what is received; what is only sent is waited for before the next is, so that one is on its way."""
        following = step.lower == self._pp.index
        neighbour = step.lower + following
        if following:
            sent, received = self._rows_out(step.forward), self._gradient_in(step.backward)
        else:
            sent, received = self._gradient_out(step.backward), self._rows_in(step.forward)
        sends, receives = ([] if tensor is None else [(tensor, neighbour)] for tensor in (sent, received))
        if sent is not None:
            self.finish()
        pending = self._pp.exchange(sends, receives)
        if received is None:
            self._on_the_way = pending
        else:
            pending.wait()

    def finish(self) -> None:
        """Wait for what is on its way."""
        if self._on_the_way is not None:
            self._on_the_way.wait()
        self._on_the_way = None

    def _rows_out(self, micro_batch: int | None) -> torch.Tensor | None:
        if micro_batch is None:
            return None
        return self.left[micro_batch].detach() if self._trains else self.left.pop(micro_batch)

    def _gradient_in(self, micro_batch: int | None) -> torch.Tensor | None:
        if micro_batch is None:
            return None
        self._gradients[micro_batch] = torch.empty_like(self.left[micro_batch])
        return self._gradients[micro_batch]

    def _gradient_out(self, micro_batch: int | None) -> torch.Tensor | None:
        if micro_batch is None:
            return None
        gradient = self._entered.pop(micro_batch).grad
        assert gradient is not None
        return gradient.contiguous()

    def _rows_in(self, micro_batch: int | None) -> torch.Tensor | None:
        if micro_batch is None:
            return None
        sequences = self._selected[micro_batch] = self._sequences.select(self._batches[micro_batch])
        rows = self._model.entrance(sequences)
        self._entered[micro_batch] = rows.requires_grad_(self._trains)
        return rows.detach()
