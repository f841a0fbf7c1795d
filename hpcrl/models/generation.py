"""Continuous batching: rows that end leave their slot at once, waiting rows enter. Purely ids and numbers.

The scheduler knows no tensors, the decoder no queues; a cohort has one of each, and `Generator` turns the crank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcrl.data.pipeline_order import Tick, cohorts, generation_ticks
from hpcrl.data.slots import rounded_rows
from hpcrl.models.attention import attention_over_blocks
from hpcrl.models.cohort import Cohort, Wanted
from hpcrl.models.cuda_graphs import CudaGraphs
from hpcrl.models.decode_steps import DecodeSteps, Recorder, recordable
from hpcrl.models.decoder import Decoder, Paged, distinct, head_of
from hpcrl.models.draw import Draw
from hpcrl.models.history import Generated, History
from hpcrl.models.kv_cache import spare_tokens
from hpcrl.models.line import Line
from hpcrl.models.sampling import SamplingOptions
from hpcrl.models.slot_table import SlotTable
from hpcrl.models.stopping import StopStrings
from hpcrl.models.transformer import Transformer
from hpcrl.parallel.group import Group
from hpcrl.workers.meter import Meter


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
    cuda_graphs: bool = True
    """Whether a GPU is given steps as recordings."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_new_tokens <= self.max_new_tokens or self.max_new_tokens < 1:
            raise ValueError(
                f"min_new_tokens = {self.min_new_tokens}, max_new_tokens = {self.max_new_tokens}; "
                "needed is 0 ≤ min_new_tokens ≤ max_new_tokens and max_new_tokens ≥ 1."
            )
        for name in ("slots", "prefill_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; it must be at least 1.")


@dataclass(frozen=True)
class Pace:
    """How the host keeps up with a device. It decides which rows are side by side, and no token of them."""

    late: int = 0
    """By how many visits the host reads tokens later than they are drawn; 0 waits for each, 1 never for the last."""
    recorder: Recorder | None = None
    """By which steps are recorded and replayed, where a model can be."""
    attend: Callable[..., Any] | None = None
    """What reads a cache in blocks (`flash_attn_with_kvcache`), where there is such a kernel."""


def pace_on(device: torch.device, cuda_graphs: bool, attend: Callable[..., Any] | None = None) -> Pace:
    """On a GPU the host runs ahead. A CPU is the host."""
    if device.type != "cuda":
        return Pace()
    return Pace(late=1, recorder=CudaGraphs(device) if cuda_graphs else None, attend=attend)


class Generator:
    """Generates from a model as it is at each call. Owns the caches and recordings for the time of a call; keeps
    nothing between.

    The ranks of `pp` have the model's stages, and generate the same rows; None where it is whole. While the last stage
    draws tokens for one cohort of rows, the others are at work for the next ones.
    """

    def __init__(
        self,
        model: Transformer,
        options: GenerationOptions,
        pp: Group | None = None,
        pace: Pace | None = None,
        meter: Meter | None = None,
    ) -> None:
        """A `pace` of None is that of the model's device. It is the same on all ranks. `meter` is told of visits."""
        self._model = model
        self._options = options
        self._pp = pp
        self._pace = pace
        self._meter = meter or Meter()
        self._draw: Draw | None = None
        if model.cut.is_last:
            least, ending = options.min_new_tokens, options.eos_token_ids
            self._draw = Draw(options.sampling, model.vocabulary, least, ending, model.device)

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[np.ndarray],
        seeds: Sequence[int],
        limits: Sequence[int] | None = None,
        begun: Sequence[np.ndarray] | None = None,
    ) -> Generated:
        """A response to each prompt (1-D ints, at least one token), drawn with its seed (64 bits).

        `limits` bounds each row's response, up to the options' `max_new_tokens`. `begun` are the first tokens of each,
        drawn before; what is returned follows them, and counts from their number on, so that it is what would have
        been drawn at once. Equal rows are prefilled once where they enter together, or one while another is generated
        from. Raises ValueError where a row can exceed the model's positions.
        """
        rows = begun_rows(self._options, self._model.config.max_positions, prompts, seeds, limits, begun)
        with self._model.ranks.products.packing():
            return self._generated(rows)

    def _generated(self, wanted: Wanted) -> Generated:
        options, line, idle = self._options, Line(self._model, self._pp), 0
        history = History(options.eos_token_ids, options.stops, options.min_new_tokens, wanted.begun)
        unknown = torch.zeros(0, dtype=torch.promote_types(self._model.dtype, torch.float32))
        row = self._cohorts(wanted, history)
        for tick in generation_ticks(line.stage, line.stages):
            if idle == line.stages:
                break
            drawn, given = self._exchanged(tick, line, row)
            if drawn is not None:
                assert tick.drawn is not None
                row[tick.drawn % line.stages].take(drawn, unknown.new_zeros(len(drawn)))
            if tick.visit is None:
                continue
            cohort = row[tick.visit % line.stages]
            if line.is_first:
                cohort.plan()
            idle = 0 if cohort.count else idle + 1
            if not cohort.count:
                continue
            self._meter.count("rounds", 1)
            with self._meter.timing("prefill" if cohort.begins else "decode"):
                made = cohort.visit(given)
            if made is not None and made.logprobs is not None:
                cohort.take(made.given, made.logprobs)
            line.keep(None if made is None else made.given)
        for cohort in row:
            cohort.finish()
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

    def _cohorts(self, wanted: Wanted, history: History) -> list[Cohort]:
        """As many as there are stages; they share the slots."""
        model, options, stages = self._model, self._options, self._model.cut.pp
        attend = attention_over_blocks(model.device, model.dtype, model.config.head_dim)
        pace = self._pace or pace_on(model.device, options.cuda_graphs, attend)
        longest_first = sorted(map(wanted.most, range(len(wanted.prompts))), reverse=True)
        recorder = pace.recorder if recordable(model) else None
        slots, head = min(options.slots, len(wanted.prompts)), head_of(model)
        windows = [model.config.window(layer) for layer in range(1, model.config.blocks + 1)]
        schedulers = cohorts(
            stages,
            wanted.lengths,
            slots,
            options.prefill_tokens,
            wanted.numbers,
            limits=wanted.limits,
            spare=spare_tokens(windows, wanted.longest, pace.attend is not None),
        )
        found = []
        for scheduler in schedulers:
            room = scheduler.slots if recorder is None else rounded_rows(scheduler.slots)
            paged = None if pace.attend is None else Paged(longest_first[: scheduler.slots], pace.attend)
            decoder = Decoder(model, room, wanted.longest, head, paged=paged)
            table = SlotTable(room, model.device)
            steps = DecodeSteps(model, decoder, table, self._draw, recorder)
            found.append(Cohort(scheduler, decoder, table, steps, wanted, history, pace.late))
        return found


def begun_rows(
    options: GenerationOptions,
    positions: int,
    prompts: Sequence[np.ndarray],
    seeds: Sequence[int],
    limits: Sequence[int] | None = None,
    begun: Sequence[np.ndarray] | None = None,
) -> Wanted:
    """The rows of a generation by a model of so many positions. Raises ValueError where they cannot be generated."""
    limits = [options.max_new_tokens] * len(prompts) if limits is None else limits
    begun = [np.zeros(0, np.int32)] * len(prompts) if begun is None else begun
    check_rows(options, positions, [len(prompt) for prompt in prompts], seeds, limits, [len(row) for row in begun])
    texts = [np.concatenate(row) if len(row[1]) else row[0] for row in zip(prompts, begun, strict=True)]
    counts = [len(row) for row in begun]
    left = [limit - count for limit, count in zip(limits, counts, strict=True)]
    return Wanted(texts, distinct(texts)[1], seeds, left, counts)


def check_rows(
    options: GenerationOptions,
    positions: int,
    lengths: Sequence[int],
    seeds: Sequence[int],
    limits: Sequence[int],
    begun: Sequence[int],
) -> None:
    """Raises ValueError where rows of these lengths, of which so many tokens are begun, cannot be generated by a model
    of so many positions."""
    if not len(lengths) == len(seeds) == len(limits) == len(begun) > 0:
        raise ValueError(
            f"{len(lengths)} prompts, {len(seeds)} seeds, {len(limits)} limits and {len(begun)} begun responses; "
            "needed are equally many, at least one."
        )
    for row, (length, limit, count) in enumerate(zip(lengths, limits, begun, strict=True)):
        if length < 1:
            raise ValueError(f"Prompt {row} is empty; it needs at least one token.")
        if not 1 <= limit <= options.max_new_tokens:
            raise ValueError(f"The limit of row {row} is {limit}; it must be in 1 … {options.max_new_tokens}.")
        if count >= limit:
            raise ValueError(f"Row {row} has {count} tokens already, and its limit is {limit}; it must be above that.")
        if length + limit > positions:
            raise ValueError(
                f"Prompt {row} has {length} tokens and may get {limit} new ones, more than the model's "
                f"{positions} positions. Lower max_new_tokens or the prompts' length."
            )
