"""Continuous batching: rows that end leave their slot at once, waiting rows enter. Purely ids and numbers.

The scheduler knows no tensors, the decoder no queues; `Generator` turns the crank between them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcrl.data.slots import Admission, Move, Scheduler
from hpcrl.models.decoder import Decoder, distinct
from hpcrl.models.sampling import SamplingOptions, choose
from hpcrl.models.slot_table import SlotTable
from hpcrl.models.stopping import StopStrings
from hpcrl.models.transformer import Transformer


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
    """float32, one a token."""
    finished: list[bool]
    """Whether the row ended by a token of `eos_token_ids` or by its text, not by its limit."""


class Generator:
    """Generates from a model as it is at each call. Owns the cache for the time of a call; keeps nothing between."""

    def __init__(self, model: Transformer, options: GenerationOptions) -> None:
        self._model = model
        self._options = options
        self._eos = torch.tensor(options.eos_token_ids, dtype=torch.int64, device=model.device)

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
        lengths = [len(prompt) for prompt in prompts]
        self._check(lengths, seeds, limits)
        slots = min(self._options.slots, len(prompts))
        _, numbers = distinct(prompts)
        scheduler = Scheduler(lengths, slots, self._options.prefill_tokens, numbers)
        longest = max(length + limit for length, limit in zip(lengths, limits, strict=True))
        decoder = Decoder(self._model, slots, longest)
        table = SlotTable(slots, self._model.device)
        history, begin = _History(self._options), _Begin(decoder, prompts, numbers)
        while not scheduler.done:
            first = scheduler.active
            admission = scheduler.admit()
            if rows := admission.rows:
                span = slice(first, scheduler.active)
                table.begin(first, rows, *([column[row] for row in rows] for column in (seeds, limits, lengths)))
                logits = begin.logits(admission, first, scheduler.awaited())
            else:
                span = slice(0, scheduler.active)
                logits = decoder.decode(table.tokens(span), table.positions(span))
            ended = self._choose(logits, table, span, history)
            moves = scheduler.retire(ended) if ended else []
            decoder.move(moves)
            table.move(moves)
        return history.responses(len(prompts))

    def _choose(self, logits: Tensor, table: SlotTable, span: slice, history: "_History") -> list[int]:
        """Draw and write down the next token of the span's rows. Returns the slots that ended."""
        counts = table.counts(span)
        if self._options.min_new_tokens and self._eos.numel():
            early = (counts < self._options.min_new_tokens)[:, None]
            logits[:, self._eos] = logits[:, self._eos].masked_fill(early, -torch.inf)
        tokens, logprobs = choose(logits, table.seeds(span), counts, self._options.sampling)
        stopped = history.add(table.rows(span), tokens, logprobs)
        ended = table.advance(span, tokens, self._eos)
        return sorted({*ended, *(span.start + slot for slot in stopped)}) if stopped else ended

    def _check(self, lengths: Sequence[int], seeds: Sequence[int], limits: Sequence[int]) -> None:
        if not len(lengths) == len(seeds) == len(limits) > 0:
            raise ValueError(
                f"{len(lengths)} prompts, {len(seeds)} seeds and {len(limits)} limits; "
                "needed are equally many, at least one."
            )
        for row, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
            if length < 1:
                raise ValueError(f"Prompt {row} is empty; it needs at least one token.")
            if not 1 <= limit <= self._options.max_new_tokens:
                raise ValueError(
                    f"The limit of row {row} is {limit}; it must be in 1 … {self._options.max_new_tokens}."
                )
            if length + limit > self._model.config.max_positions:
                raise ValueError(
                    f"Prompt {row} has {length} tokens and may get {limit} new ones, more than the model's "
                    f"{self._model.config.max_positions} positions. Lower max_new_tokens or the prompts' length."
                )


class _Begin:
    """Begins rows: by a prefill, or with a copy of what a row of the same prompt has in its slot."""

    def __init__(self, decoder: Decoder, prompts: Sequence[np.ndarray], numbers: Sequence[int]) -> None:
        self._decoder = decoder
        self._prompts = prompts
        self._numbers = numbers
        self._kept: dict[int, Tensor] = {}
        """By prompt: the logits after it, while rows wait for them."""

    def logits(self, admission: Admission, first_slot: int, awaited: AbstractSet[int]) -> Tensor:
        """Logits [N, V] of the next tokens of the rows, which sit in the slots from `first_slot` on."""
        made, first_copy = [], first_slot + len(admission.prefilled)
        if admission.prefilled:
            made = [self._decoder.prefill([self._prompts[row] for row in admission.prefilled], first_slot)]
        self._decoder.move([Move(source, first_copy + i) for i, source in enumerate(admission.sources)])
        if admission.copied:
            made.append(torch.stack([self._kept[self._numbers[row]] for row in admission.copied]))
        logits = torch.cat(made) if len(made) > 1 else made[0]
        last = {self._numbers[row]: place for place, row in enumerate(admission.rows)}
        self._kept |= {number: logits[place].clone() for number, place in last.items() if number in awaited}
        self._kept = {number: kept for number, kept in self._kept.items() if number in awaited}
        return logits


class _History:
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
            logprobs=np.split(logprobs[order].astype(np.float32), cuts),
            finished=[self._is_finished(row, int(response[-1])) for row, response in enumerate(responses)],
        )

    def _is_finished(self, row: int, last: int) -> bool:
        by_text = self._texts is not None and self._texts[row].stopped
        return last in self._options.eos_token_ids or (by_text and self._counts[row] >= self._options.min_new_tokens)
