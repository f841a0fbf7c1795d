"""The cost model held to what this machine takes: a profile of small models, then calls of other lengths.

Blocks, what is before and after them, rounds and updates are measured on one rank and on two that share each matrix,
of two models, at a few lengths. Then generate, inference and train_step are made in d1, d2, t2 and p2 of texts that
the profile has not seen, and compared with what `placement.costs` says of them.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from figures import Figure, median

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.experiments import load_config, ppo_values, write_config, write_inputs  # noqa: E402
from support.pool import RankPool, everyone, gloo_pool  # noqa: E402

from hpcrl.algos.sft import answer_loss  # noqa: E402
from hpcrl.config.generation import GenerationConfig  # noqa: E402
from hpcrl.config.model import OptimizerConfig, TrainedModelConfig  # noqa: E402
from hpcrl.dataflow.graph import MFC  # noqa: E402
from hpcrl.engines.composed import ComposedEngine  # noqa: E402
from hpcrl.engines.engine import Columns, EngineContext, Objective, Sequences, Update  # noqa: E402
from hpcrl.families.config import DecoderConfig  # noqa: E402
from hpcrl.models.kernels import Kernels  # noqa: E402
from hpcrl.models.pretrained import write_random_pretrained  # noqa: E402
from hpcrl.parallel.group import Group  # noqa: E402
from hpcrl.parallel.replica import ReplicaGroups, groups_of, over_data, sharing  # noqa: E402
from hpcrl.placement.abilities import Chosen  # noqa: E402
from hpcrl.placement.costs import CostModel  # noqa: E402
from hpcrl.placement.data_sheets import CPU_CORE  # noqa: E402
from hpcrl.placement.flops import flops_of  # noqa: E402
from hpcrl.placement.layouts import parse_layout  # noqa: E402
from hpcrl.placement.lengths import spread_lengths  # noqa: E402
from hpcrl.placement.model_costs import block_shape, head_shape  # noqa: E402
from hpcrl.placement.placing import Placed  # noqa: E402
from hpcrl.placement.rates import Fixed, Link, Links, Measured, Piece, Rates, Surface  # noqa: E402
from hpcrl.placement.workload import Workload  # noqa: E402
from hpcrl.plugins import load  # noqa: E402
from hpcrl.processes import keep_freed_memory  # noqa: E402
from hpcrl.workers.host import nobody_is_told  # noqa: E402
from hpcrl.workers.meter import Meter  # noqa: E402

SMALL = DecoderConfig(
    family="qwen2", vocabulary_size=1024, hidden_size=128, intermediate_size=352, blocks=4, heads=4, kv_heads=2,
    head_dim=32, max_positions=1024, qkv_bias=True, tied=True,
)  # fmt: skip
WIDE = replace(SMALL, hidden_size=256, intermediate_size=704, heads=8, head_dim=32, tied=False)
MODELS = {"small": SMALL, "wide": WIDE}
LAYOUTS = ("d1", "d2", "t2", "p2")
KINDS = ("inference", "train_step", "generate")
FEW, MANY = 1, 3
"""Blocks of the models that are profiled: what one block takes is a difference."""
BACKEND = "native"
ROUNDS = 9
"""Of a profiled generation."""
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

    def generate(self, prompts: Sequence[int], seeds: Sequence[int], longest: int, least: int) -> tuple[Taken, list[int]]:
        texts = [self._draw.integers(24, 1000, length, np.int32) for length in prompts]
        config = GenerationConfig(max_new_tokens=longest, min_new_tokens=least, slots=self._slots)
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
    """On a rank: seconds of each point of the few and of the many blocks. `cpu` counts those of the thread."""
    groups = _groups(context, layout)
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
    return [{key: median(seconds) for key, seconds in of.items()} for of in taken]


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
                yield ("prefill", tokens, length), subject.generate([length] * count, range(count), 1, 1)[0].whole
    for rows in grid.rows:
        for seen in grid.contexts:
            begun = subject.generate([seen] * rows, range(rows), 1, 1)[0].whole
            whole = subject.generate([seen] * rows, range(rows), ROUNDS, ROUNDS)[0].whole
            yield ("decode", rows, seen), (whole - begun) / (ROUNDS - 1)


def pieces_of(config: DecoderConfig, few: dict[Any, float], many: dict[Any, float], grid: Grid, tp: int) -> list[Measured]:
    """What the parts of a model took, out of models of few and of many blocks."""
    flops, found = flops_of(replace(config, blocks=1)), []
    assert flops is not None
    ends = flops.forward_pass.end / flops.forward_pass.row
    shortest = grid.lengths[0]

    def block(*key: Any) -> float:
        return max(0.0, many[key] - few[key]) / (MANY - FEW)

    def add(part: Any, of: Any, points: list[Point]) -> None:
        shape = block_shape(config) if part == "block" else head_shape(config) if part != "update" else ""
        surface = Surface.of([(x, y, 1e9 * max(0.0, seconds)) for x, y, seconds in points])
        found.append(Measured(Piece(part, of, shape, BACKEND, config_dtype(), tp), surface))

    def rows_of(tokens: int, length: int) -> int:
        return max(1, tokens // length) * length

    for of in ("forward", "taught", "backward"):
        add("block", of, [(tokens, length, block(of, tokens, length)) for tokens in grid.tokens for length in grid.lengths])
        heads: list[Point] = [(0, 1, 0.0)]
        entries: list[Point] = []
        for tokens in grid.tokens:
            left = 1 - 1 / shortest
            alone = block(of, tokens, shortest)
            whole, bare = few[of, tokens, shortest], few[of, tokens, 0]
            head = max(0.0, whole - bare - ends * left * alone) / left
            heads.append((tokens, 1, head))
            entries.append((tokens, 1, bare - alone * (1 - ends * left) - head / shortest))
        add("head", of, heads)
        add("entry", of, entries)
    tokens, length = grid.tokens[-1], shortest
    sizes = [_numel(config, blocks, tp) for blocks in (FEW, MANY)]
    add("update", "taught", [(size, 1, of["update", tokens, length]) for size, of in zip(sizes, (few, many), strict=True)])
    decode = [(rows, seen, block("decode", rows, seen)) for rows in grid.rows for seen in grid.contexts]
    add("block", "decode", decode)
    seen = grid.contexts[0]
    draws = [(rows, 1, few["decode", rows, seen] - block("decode", rows, seen)) for rows in grid.rows]
    add("head", "decode", draws)
    add("entry", "decode", [(1, 1, 0.0)])
    add("block", "prefill", [(tokens, length, block("prefill", tokens, length)) for tokens in grid.tokens for length in grid.lengths])
    head = found[-3].surface
    begins = []
    for tokens in grid.tokens:
        rows = max(1, tokens // shortest)
        drawing = float(head.at(np.array([rows]), np.ones(1))[0]) / 1e9
        begins.append((tokens, 1, few["prefill", tokens, shortest] - block("prefill", tokens, shortest) - drawing))
    add("entry", "prefill", begins)
    return found


def config_dtype() -> str:
    return "fp32"


def _numel(config: DecoderConfig, blocks: int, tp: int) -> int:
    from hpcrl.placement.memory import parameters_held
    from hpcrl.placement.shards import Cut

    return parameters_held(replace(config, blocks=blocks), Cut(0, tp))


def links(context: Any, repeats: int = 15) -> Links:
    """On a rank: what exchanges with the other take, and messages."""
    group = everyone(context)
    sizes = [2**8, 2**18]
    exchanged, sent = [], []
    for size in sizes:
        flat = torch.zeros(size)
        exchanged.append(_median(lambda: group.all_gather(group.reduce_scatter(flat), flat), group, repeats) / 2)
        sent.append(_median(lambda: _message(group, flat), group, repeats))
    return Links(_fitted(exchanged, [size * 2 for size in sizes]), _fitted(sent, [size * 4 for size in sizes]))


def _message(group: Group, flat: torch.Tensor) -> None:
    if group.index == 0:
        group.send(flat, 1).wait()
    else:
        group.receive(flat, 0).wait()


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


class Texts(NamedTuple):
    """Of a call: what is asked for, and how it is cut."""

    prompts: np.ndarray
    responses: np.ndarray
    tokens: int = 256
    slots: int = 8
    longest: int = 96


def unseen(seed: int, count: int = 24) -> Texts:
    prompts, responses = spread_lengths((20, 8), (34, 26), (48, 96)).drawn(count, 1, seed)
    return Texts(prompts, responses)


def made(context: Any, folder: Path, layout: str, texts: Texts, repeats: int, cpu: bool) -> Any:
    """On a rank: seconds of each kind of call, and the lengths of the responses that it generated to its part."""
    keep_freed_memory()
    groups = _groups(context, layout)
    if groups is None:
        return None
    now = time.process_time if cpu else time.perf_counter
    work = Workload(texts.prompts, texts.responses)
    subject = Subject(folder, groups, texts.tokens, now, texts.slots)
    dp, own = groups.dp.size, groups.dp.index
    parts = {"inference": work.parts(dp)[own], "generate": work.parts(dp)[own], "train_step": work.shares(dp)[0][own]}
    lengths: list[int] = []
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for repeat in range(repeats + 1):
        for kind in KINDS:
            part = list(parts[kind])
            prompts, responses = texts.prompts[part].tolist(), texts.responses[part].tolist()
            if kind == "generate":
                subject._draw = np.random.default_rng(7)
                of, lengths = subject.generate(prompts, part, texts.longest, 0)
            else:
                of = getattr(subject, kind)(prompts, responses)
            if repeat:
                taken[kind].append(of.whole)
    return {kind: median(seconds) for kind, seconds in taken.items()}, dict(zip(parts["generate"], lengths, strict=True))


def _groups(context: Any, layout: str) -> ReplicaGroups | None:
    """Of a layout on the first ranks; None on the others."""
    shape = parse_layout(layout)
    if shape.size == 1:
        return None if context.rank else over_data(Group((0,), 0, context.device))
    mesh = everyone(context).ranks[: shape.size]
    context.form(sharing(shape, mesh))
    return groups_of(context, shape, mesh) if context.rank in mesh else None


class Compared(NamedTuple):
    """A call as it was made, and as it was predicted, in seconds."""

    model: str
    kind: str
    layout: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)


def rates_of(pieces: Sequence[Measured], near: Links) -> Rates:
    fields = {name: getattr(CPU_CORE, name) for name in CPU_CORE.__struct_fields__}
    own = {"source": "this bench", "measured": tuple(pieces), "near": near, "fixed": Fixed(0, 0, 0, 0)}
    return Rates(**fields | own)


def predicted(experiment: Any, config: DecoderConfig, rates: Rates, texts: Texts, kind: str, layout: str) -> float:
    """By the cost model, in seconds."""
    generation = replace(experiment.generation, slots=texts.slots)
    experiment = replace(experiment, generation=generation)
    work = Workload(texts.prompts, texts.responses)
    costs = CostModel(experiment, {"actor": config}, rates, work)
    shape = parse_layout(layout)
    place = Placed(shape, tuple(range(shape.size)), BACKEND)
    call: Any = MFC("actor_call", "actor", kind, (), ())  # type: ignore[arg-type]
    return costs.call_nanoseconds(call, place, texts.tokens) / 1e9


def compared(
    pool: RankPool, work: Path, name: str, layouts: Sequence[str], grid: Grid, repeats: int, cpu: bool = False
) -> list[Compared]:
    """Of one model, in layouts of the pool's ranks."""
    config = MODELS[name].with_head("vocabulary")
    folders = {blocks: work / f"{name}-{blocks}" for blocks in (FEW, MANY, config.blocks)}
    for blocks, folder in folders.items():
        write_random_pretrained(folder, replace(config, blocks=blocks), seed=1)
    paths = [f"{role}.path={work / 'model'}" for role in ("actor", "critic", "reference")]
    experiment = load_config(write_config(work / "ppo.yaml", ppo_values()), [*paths, f"data.train={work / 'rows.jsonl'}"])
    near = pool.run(links)[0] if pool.size > 1 else CPU_CORE.near
    pieces: list[Measured] = []
    for layout in ("d1", "t2") if "t2" in layouts else ("d1",):
        few, many = pool.run(profiled, folders, layout, grid, cpu)[0]
        pieces += pieces_of(config, few, many, grid, parse_layout(layout).tp)
    rates, texts, found = rates_of(pieces, near), unseen(seed=3), []
    for layout in layouts:
        ranks = [it for it in pool.run(made, folders[config.blocks], layout, texts, repeats, cpu) if it is not None]
        lengths = dict(pair for _, of in ranks for pair in of.items())
        for kind in KINDS:
            responses = np.array([lengths[i] for i in range(len(texts.prompts))]) if kind == "generate" else texts.responses
            guess = predicted(experiment, config, rates, texts._replace(responses=responses), kind, layout)
            found.append(Compared(name, kind, layout, max(of[kind] for of, _ in ranks), guess))
    return found


def out_of_order(found: Sequence[Compared]) -> list[tuple[Compared, Compared]]:
    """Pairs of layouts of one call that measure more than 15 % apart, and are predicted the other way round."""
    wrong = []
    for one, other in combinations(found, 2):
        if (one.model, one.kind) == (other.model, other.kind):
            slow, fast = sorted((one, other), key=lambda it: -it.measured)
            if slow.measured > 1.15 * fast.measured and slow.predicted <= fast.predicted:
                wrong.append((slow, fast))
    return wrong


def costs(work: Path) -> list[Figure]:
    """The figures of the bench."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_inputs(work)
    found: list[Compared] = []
    for name in MODELS:
        with gloo_pool(2) as pool:
            found += compared(pool, work, name, LAYOUTS, Grid(), repeats=5)
    errors = [it.error for it in found]
    worst = max(found, key=lambda it: it.error)
    pairs = sum(a.kind == b.kind and a.model == b.model and max(a.measured, b.measured) > 1.15 * min(a.measured, b.measured)
                for a, b in combinations(found, 2))  # fmt: skip
    detail = "; ".join(
        f"{it.model} {it.kind} {it.layout} {it.predicted / it.measured - 1:+.0%} of {it.measured * 1e3:.0f} ms" for it in found
    )
    return [
        Figure("cost model: median error", 100 * median(errors), "%", "≤ 10", detail),
        Figure("cost model: worst error", 100 * worst.error, "%", "≤ 25", f"{worst.model}, {worst.kind}, {worst.layout}"),
        Figure("plans > 15 % apart, ordered wrongly", len(out_of_order(found)), "", "≤ 0", f"of {pairs} pairs"),
    ]


if __name__ == "__main__":
    for figure in costs(Path(sys.argv[1])):
        print(figure)
