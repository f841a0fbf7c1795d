"""Responses of a model of transformers, over its own cache. Rows of equally long prompts are generated side by side.

What is drawn for a row follows from its seed and the number of its token, as it does of hpcrl's own models.
Shapes: N rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcrl.errors import DataError
from hpcrl.models.cohort import Wanted
from hpcrl.models.foreign import ForeignModel, takes
from hpcrl.models.generation import GenerationOptions, begun_rows
from hpcrl.models.history import Generated, History
from hpcrl.models.sampling import choose
from hpcrl.models.slot_table import signed
from hpcrl.workers.meter import Meter

NOT_FEWER = 4
"""Rows below which a batch is not made smaller."""


class ForeignGenerator:
    """Generates from a model as it is at each call; keeps nothing between."""

    def __init__(self, model: ForeignModel, options: GenerationOptions, meter: Meter | None = None) -> None:
        """`meter` is told of its rounds."""
        self._model = model
        self._options = options
        self._meter = meter or Meter()
        self._wide = torch.promote_types(model.dtype, torch.float32)
        self._eos = torch.tensor(options.eos_token_ids, dtype=torch.int64, device=model.device)

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[np.ndarray],
        seeds: Sequence[int],
        limits: Sequence[int] | None = None,
        begun: Sequence[np.ndarray] | None = None,
    ) -> Generated:
        """A response to each prompt (1-D ints, at least one token), drawn with its seed (64 bits); `limits` and `begun`
        are those of `Generator.generate`. Raises ValueError where a row can exceed the model's positions."""
        options = self._options
        wanted = begun_rows(options, self._model.config.max_positions, prompts, seeds, limits, begun)
        self._model.attend(self._model.usual)
        history = History(options.eos_token_ids, options.stops, options.min_new_tokens, wanted.begun)
        for rows in self._batches(wanted.lengths):
            self._generate(rows, wanted, history)
        return history.responses(len(prompts))

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Rows of one length, within the bounds of slots and of a prefill."""
        ordered = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
        for length, alike in groupby(ordered, key=lambda row: lengths[row]):
            rows = list(alike)
            most = max(1, min(self._options.slots, self._options.prefill_tokens // length))
            yield from (rows[begin : begin + most] for begin in range(0, len(rows), most))

    def _generate(self, rows: list[int], wanted: Wanted, history: History) -> None:
        device, options = self._model.device, self._options
        seeds_N = torch.tensor([signed(wanted.seeds[row]) for row in rows], device=device)
        index_N = torch.tensor([wanted.counts[row] for row in rows], device=device)
        active = np.ones(len(rows), bool)
        given, cache = torch.tensor(np.stack([wanted.prompts[row] for row in rows])).to(device, torch.int64), None
        for count in range(max(wanted.limits[row] for row in rows)):
            self._meter.count("rounds", 1)
            with self._meter.timing("decode" if count else "prefill"):
                logits_NV, cache = self._step(given, cache)
            if options.min_new_tokens and len(self._eos):
                logits_NV[:, self._eos] = logits_NV[:, self._eos].masked_fill(
                    (index_N < options.min_new_tokens)[:, None], -torch.inf
                )
            tokens_N, logprobs_N = choose(logits_NV, seeds_N, index_N, options.sampling)
            places = active.nonzero()[0]
            going, of_going = [rows[place] for place in places], torch.from_numpy(places).to(device)
            ended = history.add(going, tokens_N[of_going].cpu().numpy(), logprobs_N[of_going])
            full = [row for row in going if wanted.limits[row] == count + 1]
            active &= ~np.isin(rows, [*ended, *full])
            if not active.any():
                return
            if len(rows) > NOT_FEWER and 2 * active.sum() <= len(rows) and hasattr(cache, "batch_select_indices"):
                left = torch.from_numpy(active.nonzero()[0]).to(device)
                cache.batch_select_indices(left)
                seeds_N, index_N, tokens_N = seeds_N[left], index_N[left], tokens_N[left]
                rows, active = [row for row, going in zip(rows, active, strict=True) if going], active[active]
            given, index_N = tokens_N[:, None], index_N + 1

    def _step(self, tokens_NL: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits [N, V] of the next tokens, and the cache with these tokens in it. Raises DataError."""
        library = self._model.library
        named = "cache_params" if takes(library.forward, "cache_params") else "past_key_values"
        options: dict[str, Any] = {} if cache is None else {named: cache}
        if takes(library.forward, "logits_to_keep"):
            options["logits_to_keep"] = 1
        found = library(input_ids=tokens_NL, use_cache=True, return_dict=True, **options)
        kept = getattr(found, named, None)
        if kept is None:
            raise DataError(f"{self._model.config.library.causal} keeps no cache; it cannot generate.")
        return found.logits[:, -1].to(self._wide, copy=True), kept
