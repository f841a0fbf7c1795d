"""Continuous batching: rows that end leave their slot at once, waiting rows enter. Purely ids and numbers.

The scheduler knows no tensors, the decoder no queues; a cohort has one of each, and `Generator` turns the crank.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcrl.data.pipeline_order import Tick, cohorts, generation_ticks
from hpcrl.models.cohort import Cohort, Wanted
from hpcrl.models.decoder import Decoder, distinct, head_of
from hpcrl.models.line import Line
from hpcrl.models.sampling import SamplingOptions
from hpcrl.models.sampling_together import choose_together
from hpcrl.models.slot_table import SlotTable
from hpcrl.models.stopping import StopStrings
from hpcrl.models.transformer import Transformer
from hpcrl.parallel.group import Group


@dataclass(frozen=True)
class GenerationOptions:
    """`eos_token_ids` end a row and belong to its response; before `min_new_tokens` tokens they cannot come.

    At most `slots` rows are generated side by side and `prefill_tokens` prompt tokens go through the model at once;
    both bound memory and must not follow from what happens to be free.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    eos_token_ids: tuple[int, ...] = ()
    stops: Callable[[], StopStrings] | None = None
    """Makes what reads a response and says whether it ends; before `min_new_tokens` tokens it does not."""
    slots: int = 256
    prefill_tokens: int = 16384

    def __post_init__(self) -> None:
        if not 0 <= self.min_new_tokens <= self.max_new_tokens or self.max_new_tokens < 1:
            raise ValueError(
                f"min_new_tokens = {self.min_new_tokens}, max_new_tokens = {self.max_new_tokens}; "
                "needed is 0 ≤ min_new_tokens ≤ max_new_tokens and max_new_tokens ≥ 1."
            )
        for name in ("slots", "prefill_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; it must be at least 1.")


class Generated(NamedTuple):
    """Responses in the order of the prompts. `logprobs` are those of the distribution sampled from: after temperature,
    top-k, top-p and the ban of EOS before `min_new_tokens`."""

    tokens: list[np.ndarray]
    """int32, with the ending token where there is one."""
    logprobs: list[np.ndarray]
    """One a token: float64 of a model in float64, else float32."""
    finished: list[bool]
    """Whether the row ended by a token of `eos_token_ids` or by its text, not by its limit."""


class Generator:
    """Generates from a model as it is at each call. Owns the caches for the time of a call; keeps nothing between.

    The ranks of `pp` have the model's stages, and generate the same rows; None where it is whole. While the last stage
    draws tokens for one cohort of rows, the others are at work for the next ones.
    """

    def __init__(self, model: Transformer, options: GenerationOptions, pp: Group | None = None) -> None:
        self._model = model
        self._options = options
        self._pp = pp
        self._eos = torch.tensor(options.eos_token_ids, dtype=torch.int64, device=model.device)
        self._own_eos = model.vocabulary.local(self._eos)

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[np.ndarray], seeds: Sequence[int], max_new_tokens: Sequence[int] | None = None
    ) -> Generated:
        """A response to each prompt (1-D ints, at least one token), drawn with its seed (64 bits).

        `max_new_tokens` sets a limit of its own for each row, up to the options'. Equal prompts are prefilled once
        where they enter together, or one while another is generated from. Raises ValueError where a row can exceed the
        model's positions.
        """
        limits = [self._options.max_new_tokens] * len(prompts) if max_new_tokens is None else list(max_new_tokens)
        check_rows(self._options, self._model.config.max_positions, [len(prompt) for prompt in prompts], seeds, limits)
        with self._model.ranks.products.packing():
            return self._generated(Wanted(prompts, distinct(prompts)[1], seeds, limits))

    def _generated(self, wanted: Wanted) -> Generated:
        history, line, idle = History(self._options), Line(self._model, self._pp), 0
        unknown = torch.zeros(0, dtype=torch.promote_types(self._model.dtype, torch.float32))
        row = self._cohorts(wanted)
        for tick in generation_ticks(line.stage, line.stages):
            if idle == line.stages:
                break
            drawn, given = self._exchanged(tick, line, row)
            if drawn is not None:
                assert tick.drawn is not None
                self._take(row[tick.drawn % line.stages], drawn, unknown.new_zeros(len(drawn)), history)
            if tick.visit is None:
                continue
            cohort = row[tick.visit % line.stages]
            if line.is_first:
                cohort.plan()
            idle = 0 if cohort.count else idle + 1
            if not cohort.count:
                continue
            made = cohort.visit(given)
            if line.is_last:
                assert made is not None
                made, logprobs = self._drawn(cohort, made)
                self._take(cohort, made, logprobs, history)
            line.keep(made)
        generated = history.responses(len(wanted.prompts))
        return generated._replace(logprobs=line.told(generated.logprobs))

    def _exchanged(self, tick: Tick, line: Line, row: Sequence[Cohort]) -> tuple[Tensor | None, Tensor | None]:
        """The tokens and the rows of this tick. Stages but the first plan before, to know how many rows come."""
        rows = tokens = 0
        if tick.visit is not None and not line.is_first:
            cohort = row[tick.visit % line.stages]
            rows = cohort.given_rows() if cohort.plan() else 0
        if tick.drawn is not None and not line.is_last:
            tokens = row[tick.drawn % line.stages].count
        return line.exchange(tokens, rows)

    def _cohorts(self, wanted: Wanted) -> list[Cohort]:
        """As many as there are stages; they share the slots."""
        model, options, stages = self._model, self._options, self._model.cut.pp
        slots, head = min(options.slots, len(wanted.prompts)), head_of(model)
        schedulers = cohorts(stages, wanted.lengths, slots, options.prefill_tokens, wanted.numbers)
        return [
            Cohort(
                scheduler,
                Decoder(model, scheduler.slots, wanted.longest, head),
                SlotTable(scheduler.slots, model.device),
                wanted,
            )
            for scheduler in schedulers
        ]

    def _drawn(self, cohort: Cohort, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The next token of the span's rows, and its log-probability."""
        counts = cohort.table.counts(cohort.span)
        if self._options.min_new_tokens and self._own_eos.numel():
            early = (counts < self._options.min_new_tokens)[:, None]
            logits[:, self._own_eos] = logits[:, self._own_eos].masked_fill(early, -torch.inf)
        options, vocabulary = self._options.sampling, self._model.vocabulary
        return choose_together(logits, cohort.table.seeds(cohort.span), counts, options, vocabulary)

    def _take(self, cohort: Cohort, tokens: Tensor, logprobs: Tensor, history: "History") -> None:
        """Write down what was drawn; rows that end by it leave."""
        span, table = cohort.span, cohort.table
        stopped = history.add(table.rows(span), tokens, logprobs)
        ended = table.advance(span, tokens, self._eos)
        cohort.retire(sorted({*ended, *(span.start + slot for slot in stopped)}) if stopped else ended)


def check_rows(
    options: GenerationOptions, positions: int, lengths: Sequence[int], seeds: Sequence[int], limits: Sequence[int]
) -> None:
    """Raises ValueError where rows of these lengths cannot be generated by a model of so many positions."""
    if not len(lengths) == len(seeds) == len(limits) > 0:
        raise ValueError(
            f"{len(lengths)} prompts, {len(seeds)} seeds and {len(limits)} limits; "
            "needed are equally many, at least one."
        )
    for row, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
        if length < 1:
            raise ValueError(f"Prompt {row} is empty; it needs at least one token.")
        if not 1 <= limit <= options.max_new_tokens:
            raise ValueError(f"The limit of row {row} is {limit}; it must be in 1 … {options.max_new_tokens}.")
        if length + limit > positions:
            raise ValueError(
                f"Prompt {row} has {length} tokens and may get {limit} new ones, more than the model's "
                f"{positions} positions. Lower max_new_tokens or the prompts' length."
            )


class History:
    """What was drawn, step by step; turned into rows at the end."""

    def __init__(self, options: GenerationOptions) -> None:
        self._options = options
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._texts: defaultdict[int, StopStrings] | None = options.stops and defaultdict(options.stops)
        self._counts: Counter[int] = Counter()

    def add(self, rows: Tensor, tokens: Tensor, logprobs: Tensor) -> list[int]:
        """Which of these rows, by place, have come to a string that ends them."""
        self._steps.append((rows.clone(), tokens, logprobs))
        if self._texts is None:
            return []
        taken = list(zip(rows.tolist(), tokens.tolist(), strict=True))
        self._counts.update(row for row, _ in taken)
        stopped = [self._texts[row].take(token) for row, token in taken]
        least = self._options.min_new_tokens
        return [i for i, (row, _) in enumerate(taken) if stopped[i] and self._counts[row] >= least]

    def responses(self, count: int) -> Generated:
        rows, tokens, logprobs = (torch.cat(column).cpu().numpy() for column in zip(*self._steps, strict=True))
        order = np.argsort(rows, kind="stable")
        cuts = np.cumsum(np.bincount(rows, minlength=count))[:-1]
        responses = np.split(tokens[order].astype(np.int32), cuts)
        return Generated(
            tokens=responses,
            logprobs=np.split(logprobs[order], cuts),
            finished=[self._is_finished(row, int(response[-1])) for row, response in enumerate(responses)],
        )

    def _is_finished(self, row: int, last: int) -> bool:
        by_text = self._texts is not None and self._texts[row].stopped
        return last in self._options.eos_token_ids or (by_text and self._counts[row] >= self._options.min_new_tokens)
