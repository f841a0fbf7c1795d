"""A profile of a small model: what its blocks, and what is around them, take on a rank, and what two ranks exchange.

Whole calls of the engine that workers have are timed, of models of one block and of three; parts are differences.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from figures import median

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.pool import everyone  # noqa: E402

from hpcrl.algos.sft import answer_loss  # noqa: E402
from hpcrl.config.generation import GenerationConfig  # noqa: E402
from hpcrl.config.model import OptimizerConfig, TrainedModelConfig  # noqa: E402
from hpcrl.engines.composed import ComposedEngine  # noqa: E402
from hpcrl.engines.engine import Columns, EngineContext, Objective, Sequences, Update  # noqa: E402
from hpcrl.families.config import DecoderConfig  # noqa: E402
from hpcrl.models.kernels import Kernels  # noqa: E402
from hpcrl.parallel.group import Group  # noqa: E402
from hpcrl.parallel.replica import ReplicaGroups, groups_of, over_data, sharing  # noqa: E402
from hpcrl.placement.abilities import Chosen  # noqa: E402
from hpcrl.placement.flops import flops_of  # noqa: E402
from hpcrl.placement.layouts import parse_layout  # noqa: E402
from hpcrl.placement.memory import parameters_held  # noqa: E402
from hpcrl.placement.model_costs import block_shape, head_shape  # noqa: E402
from hpcrl.placement.rates import Link, Links, Measured, Piece, Surface  # noqa: E402
from hpcrl.placement.shards import Cut  # noqa: E402
from hpcrl.plugins import load  # noqa: E402
from hpcrl.workers.host import nobody_is_told  # noqa: E402
from hpcrl.workers.meter import Meter  # noqa: E402

FEW, MANY = 1, 3
"""Blocks of the models that are profiled: what one block takes is a difference."""
BACKEND, DTYPE = "native", "fp32"
ROUNDS = 9
"""Of a profiled generation."""
SENT = (2**8, 2**18)
"""Numbers."""
Now = Callable[[], float]
Point = tuple[float, float, float]


@dataclass(frozen=True)
class Grid:
    """Where a profile measures."""

    tokens: tuple[int, ...] = (48, 192, 768)
    lengths: tuple[int, ...] = (24, 96)
    rows: tuple[int, ...] = (1, 4, 12)
    contexts: tuple[int, ...] = (16, 128)
    repeats: int = 3


class Taken(NamedTuple):
    """Seconds of an engine's call, and of phases within it."""

    whole: float
    backward: float = 0.0
    optimizer: float = 0.0


def opened(folder: Path, groups: ReplicaGroups, tokens: int, meter: Meter) -> ComposedEngine:
    """The engine of a role that is trained."""
    optimizer = OptimizerConfig(lr=1e-5)
    model = TrainedModelConfig(path=str(folder), micro_batch_tokens=tokens, optimizer=optimizer)
    engine: ComposedEngine = load(Chosen.at_home("actor", model).backend().engine).open(
        EngineContext(
            role="actor",
            model=model,
            head="vocabulary",
            seed=1,
            groups=groups,
            device=torch.device("cpu"),
            tokenizer=folder,
            eos_token_ids=tuple(range(24)),
            steps=1,
            blended=False,
            empty=False,
            kernels=Kernels(deterministic=False),
            told=nobody_is_told,
            meter=meter,
        )
    )
    return engine


class Subject:
    """An engine that is timed, by a clock of the caller's."""

    def __init__(self, folder: Path, groups: ReplicaGroups, tokens: int, now: Now, slots: int = 64) -> None:
        self._meter = Meter()
        if now is not time.perf_counter:
            self._meter.clock = _Clock(now)
        self._engine = opened(folder, groups, tokens, self._meter)
        self._groups = groups
        self._now = now
        self._slots = slots
        self._draw = np.random.default_rng(0)

    def inference(self, prompts: Sequence[int], responses: Sequence[int]) -> Taken:
        sequences = self._sequences(prompts, responses)
        return self._timed(lambda: self._engine.forward(sequences))

    def train_step(self, prompts: Sequence[int], responses: Sequence[int]) -> Taken:
        sequences = self._sequences(prompts, responses)
        columns = Columns({"weights": np.full(int(sequences.labels.sum()), 1e-3)})
        objective = Objective(answer_loss)
        return self._timed(lambda: self._engine.train_batch(sequences, columns, objective, Update(1, 0, 1)))

    def generate(
        self, prompts: Sequence[int], seeds: Sequence[int], longest: int, least: int, slots: int = 0
    ) -> tuple[Taken, list[int]]:
        """Also tokens of each response."""
        texts = [self._draw.integers(24, 1000, length, np.int32) for length in prompts]
        config = GenerationConfig(max_new_tokens=longest, min_new_tokens=least, slots=slots or self._slots)
        made: list[Any] = []
        taken = self._timed(lambda: made.append(self._engine.generate(texts, seeds, config)))
        return taken, [len(tokens) for tokens in made[0].tokens]

    def _sequences(self, prompts: Sequence[int], responses: Sequence[int]) -> Sequences:
        sides = [[self._draw.integers(0, 1000, length, np.int32) for length in of] for of in (prompts, responses)]
        return Sequences.from_rows(*sides)

    def _timed(self, action: Callable[[], Any]) -> Taken:
        self._groups.block.total(torch.zeros(1))
        self._groups.dp.total(torch.zeros(1))
        self._meter.begin()
        begun = self._now()
        action()
        whole = self._now() - begun
        seconds = self._meter.taken(0.0, whole).seconds
        return Taken(whole, seconds.backward, seconds.optimizer)


class _Clock:
    """Of this thread's CPU, for a meter."""

    def __init__(self, now: Now) -> None:
        self._now = now

    def now(self) -> float:
        return self._now()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def profiled(context: Any, folders: dict[int, Path], layout: str, grid: Grid, cpu: bool) -> list[dict[Any, float]]:
    """On a rank: seconds of each point of the few and of the many blocks. `cpu` counts those of the thread, at
    their fewest; else medians count."""
    groups = groups_in(context, layout)
    if groups is None:
        return []
    now = time.process_time if cpu else time.perf_counter
    subjects = [Subject(folders[blocks], groups, 10**6, now) for blocks in (FEW, MANY)]
    taken: list[dict[Any, list[float]]] = [{}, {}]
    for repeat in range(grid.repeats + 1):
        for subject, of in zip(subjects, taken, strict=True):
            for key, seconds in _points(subject, grid):
                if repeat:
                    of.setdefault(key, []).append(seconds)
    typical = min if cpu else median
    return [{key: typical(seconds) for key, seconds in of.items()} for of in taken]


def _points(subject: Subject, grid: Grid) -> Any:
    for tokens in grid.tokens:
        for length in (*grid.lengths, 0):
            each = length or grid.lengths[0]
            count = max(1, tokens // each)
            prompts, responses = [each if not length else 1] * count, [1 if not length else each] * count
            yield ("forward", tokens, length), subject.inference(prompts, responses).whole
            of = subject.train_step(prompts, responses)
            yield ("taught", tokens, length), of.whole - of.backward - of.optimizer
            yield ("backward", tokens, length), of.backward
            yield ("update", tokens, length), of.optimizer
            if length:
                once = subject.generate([length] * count, range(count), 1, 1, count)[0].whole
                twice = subject.generate([length] * 2 * count, range(2 * count), 1, 1, count)[0].whole
                yield ("prefill", tokens, length), twice - once
                yield ("begin", tokens, length), 2 * once - twice
    for rows in grid.rows:
        for seen in grid.contexts:
            begun = subject.generate([seen] * rows, range(rows), 1, 1)[0].whole
            whole = subject.generate([seen] * rows, range(rows), ROUNDS, ROUNDS)[0].whole
            yield ("decode", rows, seen), (whole - begun) / (ROUNDS - 1)


class Profile:
    """What the parts of a model took, out of whole calls of models of few and of many blocks."""

    def __init__(self, config: DecoderConfig, taken: Sequence[dict[Any, float]], grid: Grid, tp: int) -> None:
        self._config = config
        self._few, self._many = taken
        self._grid = grid
        self._tp = tp
        flops = flops_of(replace(config, blocks=1))
        assert flops is not None
        self._ends = flops.forward_pass.end / flops.forward_pass.row

    def pieces(self) -> list[Measured]:
        grid, shortest = self._grid, self._grid.lengths[0]
        texts = [(tokens, length) for tokens in grid.tokens for length in grid.lengths]
        rounds = [(rows, seen) for rows in grid.rows for seen in grid.contexts]
        found = []
        for of in ("forward", "taught", "backward"):
            found.append(self._piece("block", of, [(*at, self._block(of, *at)) for at in texts]))
            around = [self._around(of, tokens) for tokens in grid.tokens]
            heads = [(tokens, 1, head) for tokens, (head, _) in zip(grid.tokens, around, strict=True)]
            entries = [(tokens, 1, entry) for tokens, (_, entry) in zip(grid.tokens, around, strict=True)]
            found += [self._piece("head", of, [(0, 1, 0.0), *heads]), self._piece("entry", of, entries)]
        seen = grid.contexts[0]
        draws = [(rows, 1, self._few["decode", rows, seen] - self._block("decode", rows, seen)) for rows in grid.rows]
        draw = self._piece("head", "decode", draws)
        begins = [(tokens, 1, self._beginning(tokens, draw.surface)) for tokens in grid.tokens]
        key, first = ("update", grid.tokens[-1], shortest), (grid.tokens[0], shortest)
        sizes = [(_numel(self._config, FEW, self._tp), self._few), (_numel(self._config, MANY, self._tp), self._many)]
        return [
            *found,
            draw,
            self._piece("block", "decode", [(*at, self._block("decode", *at)) for at in rounds]),
            self._piece("entry", "decode", [(1, 1, 0.0)]),
            self._piece("block", "prefill", [(*at, self._block("prefill", *at)) for at in texts]),
            self._piece("entry", "prefill", begins),
            self._piece("block", "begin", [(1, 1, self._block("begin", *first))]),
            self._piece("entry", "begin", [(1, 1, self._few["begin", *first] - self._block("begin", *first))]),
            self._piece("update", "taught", [(size, 1, taken[key]) for size, taken in sizes]),
        ]

    def _block(self, *key: Any) -> float:
        return max(0.0, self._many[key] - self._few[key]) / (MANY - FEW)

    def _around(self, of: str, tokens: int) -> tuple[float, float]:
        """What labels of so many tokens take in the head, and what comes before the first block: by calls in which all
        tokens predict something, and in which one of each text does."""
        shortest = self._grid.lengths[0]
        left, block = 1 - 1 / shortest, self._block(of, tokens, shortest)
        whole, bare = self._few[of, tokens, shortest], self._few[of, tokens, 0]
        head = max(0.0, whole - bare - self._ends * left * block) / left
        return head, bare - block * (1 - self._ends * left) - head / shortest

    def _beginning(self, tokens: int, draw: Surface) -> float:
        shortest = self._grid.lengths[0]
        rows = max(1, tokens // shortest)
        drawing = float(draw.at(np.array([rows]), np.ones(1))[0]) / 1e9
        return self._few["prefill", tokens, shortest] - self._block("prefill", tokens, shortest) - drawing

    def _piece(self, part: Any, of: Any, points: Sequence[Point]) -> Measured:
        shapes = {"block": block_shape(self._config), "update": ""}
        shape = shapes.get(part, head_shape(self._config))
        surface = Surface.of([(x, y, 1e9 * max(0.0, seconds)) for x, y, seconds in points])
        return Measured(Piece(part, of, shape, BACKEND, DTYPE, self._tp), surface)


def _numel(config: DecoderConfig, blocks: int, tp: int) -> int:
    return parameters_held(replace(config, blocks=blocks), Cut(0, tp))


def links(context: Any, repeats: int = 15) -> Links:
    """On a rank: what exchanges with the other take, and messages."""
    group = everyone(context)
    exchanged, sent = [], []
    for size in SENT:
        flat = torch.zeros(size)
        exchanged.append(_median(partial(_exchange, group, flat), group, repeats) / 2)
        sent.append(_median(partial(_message, group, flat), group, repeats))
    return Links(_fitted(exchanged, [size * 2 for size in SENT]), _fitted(sent, [size * 4 for size in SENT]))


def _exchange(group: Group, flat: torch.Tensor) -> None:
    group.all_gather(group.reduce_scatter(flat), flat)


def _message(group: Group, flat: torch.Tensor) -> None:
    """Both ways at once, as stages exchange: who only sends does not wait until it has arrived."""
    other = 1 - group.index
    group.exchange([(flat, other)], [(torch.empty_like(flat), other)]).wait()


def _median(action: Callable[[], Any], group: Group, repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        group.total(torch.zeros(1))
        begun = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begun)
    return median(taken)


def _fitted(seconds: Sequence[float], sizes: Sequence[int]) -> Link:
    slope = max(1e-12, (seconds[1] - seconds[0]) / (sizes[1] - sizes[0]))
    return Link(round(max(0.0, seconds[0] - slope * sizes[0]) * 1e9), 1 / slope)


def groups_in(context: Any, layout: str) -> ReplicaGroups | None:
    """Of a layout on the first ranks; None on the others."""
    shape = parse_layout(layout)
    if shape.size == 1:
        return None if context.rank else over_data(Group((0,), 0, context.device))
    mesh = everyone(context).ranks[: shape.size]
    context.form(sharing(shape, mesh))
    return groups_of(context, shape, mesh) if context.rank in mesh else None
