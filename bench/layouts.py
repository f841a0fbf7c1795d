"""Two processes against one, on this machine: what the layouts d2, p2 and t2 gain in training and in generation, by the
engine that workers have. Sides in turn, medians of their wall time. And the process groups of examples/layouts."""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import Figure, median
from shares import MODEL, write_inputs

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.pool import RankPool, everyone, gloo_pool  # noqa: E402

from hpcrl.algos.sft import answer_loss  # noqa: E402
from hpcrl.cli.settings import read_experiment  # noqa: E402
from hpcrl.config.generation import GenerationConfig  # noqa: E402
from hpcrl.config.model import OptimizerConfig, TrainedModelConfig  # noqa: E402
from hpcrl.data.partition import share_out  # noqa: E402
from hpcrl.engines.composed import ComposedEngine  # noqa: E402
from hpcrl.engines.engine import Columns, EngineContext, Objective, Sequences, Update  # noqa: E402
from hpcrl.models.kernels import Kernels  # noqa: E402
from hpcrl.parallel.group import Group  # noqa: E402
from hpcrl.parallel.replica import ReplicaGroups, groups_of, over_data, sharing  # noqa: E402
from hpcrl.placement.abilities import Chosen  # noqa: E402
from hpcrl.placement.layouts import Layout, Ranks, parse_layout  # noqa: E402
from hpcrl.placement.plan import plan_for  # noqa: E402
from hpcrl.plugins import load  # noqa: E402
from hpcrl.processes import keep_freed_memory  # noqa: E402
from hpcrl.workers.host import nobody_is_told  # noqa: E402

ENDING_TOKENS = 64
"""One in 64 of those that a random model draws: most responses are short."""
SMALL, LARGE = 1024, 4096
"""Tokens of a micro-batch."""
TRAINING = {
    ("d2", SMALL): "",
    ("d2", LARGE): "≥ 1.6",
    ("p2", SMALL): "≥ 1.5",
    ("t2", SMALL): "",
    ("t2", LARGE): "≥ 1.25",
}
"""Layouts and micro-batches that are trained in, and the goal where a layout is at its best: stages need several
micro-batches, tensor parts wait for each other in every one."""
GENERATION = {(layout, SMALL): "" for layout in ("d2", "p2", "t2")}
EXAMPLE = ROOT / "examples" / "layouts" / "ppo.yaml"
POOLS = 3
"""In which groups are formed anew."""


@dataclass(frozen=True)
class Batch:
    """What each side is given: prompts, and responses of skewed lengths."""

    rows: int = 64
    prompt_tokens: int = 48
    shortest: int = 8
    longest: int = 256
    micro_batch_tokens: int = SMALL
    rounds: int = 3

    def prompts(self) -> list[np.ndarray]:
        """No two alike."""
        return self._texts([self.prompt_tokens] * self.rows, seed=0)

    def responses(self) -> list[np.ndarray]:
        """Their lengths spread evenly in the logarithm."""
        lengths = self.shortest * (self.longest / self.shortest) ** np.linspace(0, 1, self.rows)
        return self._texts(np.random.default_rng(1).permutation(lengths.round().astype(int)), seed=2)

    def _texts(self, lengths: Iterable[int], seed: int) -> list[np.ndarray]:
        draw = np.random.default_rng(seed)
        return [draw.integers(0, MODEL.vocabulary_size, length, np.int32) for length in lengths]


def layouts(work: Path, batch: Batch = Batch()) -> list[Figure]:
    shutil.rmtree(work, ignore_errors=True)
    write_inputs(work)
    figures = []
    with gloo_pool(2) as pool:
        for what, goals in (("training", TRAINING), ("generation", GENERATION)):
            of_machine, detail = _gained(pool, work, what, "", batch)
            figures.append(Figure(f"{what}: two processes that share nothing ÷ one", of_machine, "×", "", detail))
            for (layout, tokens), goal in goals.items():
                gained, detail = _gained(pool, work, what, layout, replace(batch, micro_batch_tokens=tokens))
                of_tokens = f", micro-batches of {tokens:,}" if what == "training" else ""
                figures.append(Figure(f"{what}: two processes in {layout} ÷ one{of_tokens}", gained, "×", goal, detail))
    return figures + _groups(work)


def _gained(pool: RankPool, work: Path, what: str, layout: str, batch: Batch) -> tuple[float, str]:
    """Tokens a second of both processes in those of one."""
    found = pool.run(timed, work / "model", what, layout, batch)
    tokens = [sum(of_ranks) for of_ranks in zip(*(tokens for tokens, _ in found), strict=True)]
    sides = zip(*(seconds for _, seconds in found), strict=True)
    alone, together = (median([max(of_round) for of_round in zip(*of_ranks, strict=True)]) for of_ranks in sides)
    rates = (tokens[0] / alone, tokens[1] / together)
    return rates[1] / rates[0], f"{rates[1]:,.0f} and {rates[0]:,.0f} tokens/s"


def timed(context: Any, folder: Path, what: str, layout: str, batch: Batch) -> tuple[list[int], list[list[float]]]:
    """On a rank: its tokens, and the seconds of each round until all ranks had ended; first of one process, then of
    both in a layout. Without a layout each does by itself what the one does."""
    keep_freed_memory()  # as a worker does
    together, begin = everyone(context), {"training": trains, "generation": generates}[what]
    alone = over_data(Group((context.rank,), context.rank, context.device))
    by_itself = begin(folder, alone, batch)
    sides = [by_itself if context.rank == 0 else _nothing, by_itself]
    if layout:
        mesh, shape = together.ranks, parse_layout(layout)
        context.form(sharing(shape, mesh))
        sides[1] = begin(folder, groups_of(context, shape, mesh), batch)
    tokens = [side() for side in sides]  # once before they are timed
    seconds: list[list[float]] = [[], []]
    for _ in range(batch.rounds):
        for side, of_side in zip(sides, seconds, strict=True):
            together.total(torch.zeros(1))
            begun = time.perf_counter()
            side()
            of_side.append(time.perf_counter() - begun)
    return tokens, seconds


def _nothing() -> int:
    return 0


def trains(folder: Path, groups: ReplicaGroups, batch: Batch) -> Callable[[], int]:
    """A step of SFT on this rank's part; how many tokens of it this rank is to be counted for."""
    engine = opened(folder, groups, batch)
    own, columns = lesson(groups, batch)

    def step() -> int:
        engine.train_batch(own, columns, Objective(answer_loss), Update(1, 0, 1))
        return _counted(groups, int(own.lengths.sum()))

    return step


def lesson(groups: ReplicaGroups, batch: Batch) -> tuple[Sequences, Columns]:
    """This rank's part of the texts, and the weights with which the losses of all add up to their mean."""
    whole = Sequences.from_rows(batch.prompts(), batch.responses())
    own = whole.select(_part(whole.lengths.tolist(), groups))
    return own, Columns({"weights": np.full(int(own.labels.sum()), 1 / int(whole.labels.sum()))})


def generates(folder: Path, groups: ReplicaGroups, batch: Batch) -> Callable[[], int]:
    """Responses to this rank's part; how many tokens of them this rank is to be counted for."""
    engine = opened(folder, groups, batch)
    prompts = batch.prompts()
    own = _part([len(prompt) for prompt in prompts], groups)
    config = GenerationConfig(max_new_tokens=batch.longest, slots=len(prompts))

    def generate() -> int:
        made = engine.generate([prompts[row] for row in own], own, config)
        return _counted(groups, sum(map(len, made.tokens)))

    return generate


def _part(lengths: Sequence[int], groups: ReplicaGroups) -> Sequence[int]:
    """The rows of this rank's part, as a run divides them."""
    return share_out(lengths, [tuple(range(len(lengths)))], groups.dp.size)[groups.dp.index]


def _counted(groups: ReplicaGroups, tokens: int) -> int:
    """Once for each part."""
    return tokens if groups.block.index == 0 else 0


def opened(folder: Path, groups: ReplicaGroups, batch: Batch, **settings: Any) -> ComposedEngine:
    """The engine of a role that is trained, as its `settings` say."""
    optimizer = OptimizerConfig(lr=1e-5)
    model = TrainedModelConfig(
        path=str(folder), micro_batch_tokens=batch.micro_batch_tokens, optimizer=optimizer, **settings
    )
    engine: ComposedEngine = load(Chosen.at_home("actor", model).backend().engine).open(
        EngineContext(
            role="actor",
            model=model,
            head="vocabulary",
            seed=1,
            groups=groups,
            device=torch.device("cpu"),
            tokenizer=folder,
            eos_token_ids=tuple(range(ENDING_TOKENS)),
            steps=1,
            blended=False,
            empty=False,
            kernels=Kernels(),
            told=nobody_is_told,
        )
    )
    return engine


def _groups(work: Path) -> list[Figure]:
    """Those that the example's models need, on 8 gloo ranks of this machine."""
    paths = {"actor": "model", "critic": "model", "reward_model": "judge"}
    settings = [f"data.train={work / 'rows.jsonl'}", *(f"{role}.path={work / name}" for role, name in paths.items())]
    replicas = plan_for(read_experiment(str(EXAMPLE), settings), 1).replicas
    arranged = [(replica.arrangement, replica.ranks) for replica in replicas]
    formed = []
    for _ in range(POOLS):
        with gloo_pool(8) as pool:
            formed.append(pool.run(forms, arranged))
    seconds = [max(taken for _, taken in of_ranks) for of_ranks in formed]
    count, name = formed[0][0][0], EXAMPLE.relative_to(ROOT)
    detail = f"{min(seconds):.2f} … {max(seconds):.2f} s in {POOLS} worlds of 8 processes"
    return [
        Figure(f"process groups of {name}", count, "", "≤ 14", f"of {len(arranged)} replicas, beside that of all"),
        Figure("to set them up", median(seconds), "s", "≤ 0.5", detail),
    ]


def forms(context: Any, arranged: Sequence[tuple[Layout, Ranks]]) -> tuple[int, float]:
    """On a rank: how many groups of several, but not all, there are, and seconds until all ranks have formed them."""
    together = everyone(context)
    together.total(torch.zeros(1))
    begun = time.perf_counter()
    meshes = list(dict.fromkeys(ranks for layout, mesh in arranged for ranks in sharing(layout, mesh)))
    context.form(meshes)
    together.total(torch.zeros(1))
    return sum(1 < len(ranks) < together.size for ranks in meshes), time.perf_counter() - begun
