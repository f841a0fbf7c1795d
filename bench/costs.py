"""The cost model held to what this machine takes: a profile of small models, then calls of other lengths.

Blocks, what is before and after them, rounds and updates are measured on both ranks at once, each alone and both with
a share of each matrix, of two models, at a few lengths. Then generate, inference and train_step are made in d1, d2, t2
and p2 of texts that the profile has not seen, and compared with what `placement.costs` says of them.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from figures import Figure, median
from profiles import BUDGET_S, EXCHANGING, SIDES, TRAINED, groups_in, links, profiled, timer_of

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.experiments import load_config, ppo_values, write_config  # noqa: E402
from support.pool import RankPool  # noqa: E402

from hpcrl.algos.profile_subject import Subject, Taken, opened  # noqa: E402
from hpcrl.dataflow.graph import MFC  # noqa: E402
from hpcrl.families.config import DecoderConfig  # noqa: E402
from hpcrl.placement.costs import CostModel  # noqa: E402
from hpcrl.placement.data_sheets import CPU_CORE  # noqa: E402
from hpcrl.placement.layouts import parse_layout  # noqa: E402
from hpcrl.placement.lengths import spread_lengths  # noqa: E402
from hpcrl.placement.placing import Placed  # noqa: E402
from hpcrl.placement.profile_points import PartTimes, Sides, Timed  # noqa: E402
from hpcrl.placement.rates import Fixed, Links, Measured, Rates  # noqa: E402
from hpcrl.placement.workload import Workload  # noqa: E402
from hpcrl.processes import keep_freed_memory  # noqa: E402

SMALL = DecoderConfig(
    family="qwen2", vocabulary_size=1024, hidden_size=128, intermediate_size=352, blocks=4, heads=4, kv_heads=2,
    head_dim=32, max_positions=1024, qkv_bias=True, tied=True,
)  # fmt: skip
WIDE = replace(SMALL, hidden_size=256, intermediate_size=704, heads=8, head_dim=32, tied=False)
MODELS = {"small": SMALL, "wide": WIDE}
BACKEND, DTYPE = "native", "fp32"
LAYOUTS = ("d1", "d2", "t2", "p2")
KINDS = {"inference": ("predict",), "train_step": ("train",), "generate": ("read", "decode")}
"""Of calls, and what they are predicted by."""
REPEATS = {"inference": 8, "train_step": 4, "generate": 2}
"""Of calls in each turn: one alone says little where the machine's speed differs by a tenth from call to call."""


class Texts(NamedTuple):
    """Of a call: what is asked for, and how it is cut."""

    prompts: np.ndarray
    responses: np.ndarray
    tokens: int = 256
    slots: int = 8
    longest: int = 48


def unseen(seed: int, count: int = 24) -> Texts:
    prompts, responses = spread_lengths((20, 8), (34, 26), (48, 96)).drawn(count, 1, seed)
    return Texts(prompts, responses)


class Made(NamedTuple):
    """By a rank, of a layout: what a kind of call took, until all ranks had ended."""

    taken: Taken
    lengths: dict[int, int]
    """Text → tokens of the response that was generated to it."""
    disturbed: int


def made(
    context: Any, name: str, layout: str, kind: str, texts: Texts, repeats: int, cpu: bool, folder: Path
) -> tuple[Taken, dict[int, int], int]:
    """On a rank: what a `Made` has."""
    keep_freed_memory()
    shape, config = parse_layout(layout), MODELS[name].with_head("vocabulary")
    timer, groups = timer_of(context, cpu), groups_in(context, shape)
    timer.until = 0.0  # nothing is tried again: calls are made in three turns
    place = folder / f"{name}-{layout}-{context.rank}"
    engine = opened(place, config, TRAINED, groups, timer, texts.tokens, ends=tuple(range(24)))
    subject = Subject(engine, timer, config.vocabulary_size, repeats=repeats)
    work, own = Workload(texts.prompts, texts.responses), groups.dp.index
    asked = list(work.shares(shape.dp)[0][own] if kind == "train_step" else work.parts(shape.dp)[own])
    prompts, lengths = texts.prompts[asked].tolist(), texts.responses[asked].tolist()
    if kind == "generate":
        taken, lengths = subject.generate(prompts, asked, texts.longest, 0, texts.slots)
    else:
        taken = getattr(subject, kind)(prompts, lengths)
    return taken, dict(zip(asked, lengths, strict=True)), timer.disturbed


class Compared(NamedTuple):
    """A call as it was made, and as it was predicted, in seconds."""

    model: str
    kind: str
    layout: str
    measured: float
    predicted: float
    is_disturbed: bool = False
    """Whether others had the processors whenever it was made."""

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
    pool: RankPool,
    work: Path,
    name: str,
    layouts: Sequence[str],
    sides: Sides = SIDES,
    budget_s: float = BUDGET_S,
    repeats: Mapping[str, int] = REPEATS,
    cpu: bool = False,
) -> list[Compared]:
    """Of one model, in layouts of the pool's ranks: calls of a kind are made before, amid and after what their profile
    is made of, since the machine is faster in one minute than in another."""
    config, pieces = MODELS[name].with_head("vocabulary"), dict[int, list[Timed]]()
    near = pool.run(links)[0] if pool.size > 1 else CPU_CORE.near
    turns: dict[str, list[dict[str, list[Made]]]] = {kind: [] for kind in KINDS}
    for kind, whats in KINDS.items():
        how = kind, unseen(seed=3), repeats[kind], cpu
        turns[kind].append(_turn(pool, name, layouts, *how, work / f"{kind}-0"))
        for tp in (1, 2) if "t2" in layouts else (1,):
            folder = work / f"{kind}-profile-{tp}"
            folder.mkdir()
            for what in whats:
                how_long = budget_s * (EXCHANGING if tp > 1 else 1)
                taken = pool.run(profiled, config, tp, what, sides, how_long, cpu, folder)[0]
                pieces.setdefault(tp, []).extend(taken)
            turns[kind].append(_turn(pool, name, layouts, *how, work / f"{kind}-{tp}"))
    measured = [it for tp, of in pieces.items() for it in PartTimes(config, BACKEND, DTYPE, tp, of).pieces()]
    experiment, rates, found = experiment_in(work), rates_of(measured, near), []
    for layout, (kind, of_kind) in product(layouts, turns.items()):
        of_turns = [turn[layout] for turn in of_kind]
        lengths = np.array([length for _, length in sorted(merged(of_turns[0]).items())])
        guess = predicted(experiment, config, rates, unseen(seed=3)._replace(responses=lengths), kind, layout)
        seconds = median([ranks[0].taken.whole for ranks in of_turns])
        is_disturbed = all(ranks[0].disturbed for ranks in of_turns)
        found.append(Compared(name, kind, layout, seconds, guess, is_disturbed))
    return found


def _turn(
    pool: RankPool, name: str, layouts: Sequence[str], kind: str, texts: Texts, repeats: int, cpu: bool, folder: Path
) -> dict[str, list[Made]]:
    """Layout → of each rank."""
    folder.mkdir()
    how = kind, texts, repeats, cpu, folder
    return {layout: [Made(*it) for it in pool.run(made, name, layout, *how)] for layout in layouts}


def merged(ranks: Sequence[Made]) -> dict[int, int]:
    return {text: length for it in ranks for text, length in it.lengths.items()}


def experiment_in(work: Path) -> Any:
    """Of which calls are predicted."""
    paths = [f"{role}.path={work / 'model'}" for role in ("actor", "critic", "reference")]
    return load_config(write_config(work / "ppo.yaml", ppo_values()), [*paths, f"data.train={work / 'rows.jsonl'}"])


def far_apart(found: Sequence[Compared]) -> list[tuple[Compared, Compared]]:
    """Pairs of layouts of one call that measure more than 15 % apart, the slow one first."""
    pairs = []
    for one, other in combinations(found, 2):
        slow, fast = sorted((one, other), key=lambda it: -it.measured)
        if (one.model, one.kind) == (other.model, other.kind) and slow.measured > 1.15 * fast.measured:
            pairs.append((slow, fast))
    return pairs


def out_of_order(found: Sequence[Compared]) -> list[tuple[Compared, Compared]]:
    """Those of them that are predicted the other way round."""
    return [(slow, fast) for slow, fast in far_apart(found) if slow.predicted <= fast.predicted]


def figures(name: str, found: Sequence[Compared]) -> list[Figure]:
    """Of one model's calls."""
    worst, wrong, pairs = max(found, key=lambda it: it.error), out_of_order(found), far_apart(found)
    order = "; ".join(f"{slow.kind} {slow.layout} before {fast.layout}" for slow, fast in wrong)
    return [
        Figure(
            f"calls of the {name} model: median error",
            100 * median([it.error for it in found]),
            "%",
            "≤ 10",
            "; ".join(map(_told, found)),
        ),
        Figure(
            f"calls of the {name} model: worst error", 100 * worst.error, "%", "≤ 25", f"{worst.kind} in {worst.layout}"
        ),
        Figure(
            f"calls of the {name} model: layouts > 15 % apart in the wrong order",
            len(wrong),
            "",
            "≤ 0",
            f"of {len(pairs)} pairs" + f": {order}" * bool(wrong),
        ),
    ]


def _told(it: Compared) -> str:
    """Its error by its sign."""
    share = f"{it.predicted / it.measured - 1:+.0%} of {1e3 * it.measured:.0f} ms"
    return f"{it.kind} {it.layout} {share}{' (disturbed)' * it.is_disturbed}"
