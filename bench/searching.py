"""The search held to what it is for: plans faster than ReaL's heuristic, and soon.

Steps are simulated (`hpcrl.simulation`) with the rates of H100s' data sheets; both plans of one case are made by real
processes besides, whose calls sleep as long as they are reckoned to take.
"""

import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from math import exp, fsum, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from children import PATHS, cost_of
from figures import Figure
from simulation import SHAPE

sys.path.insert(0, str(PATHS[-1]))

from support.chaos import create_run, finish, outputs
from support.paced import attempts, durations, placed, rows, step_s
from support.seven_billion import write_seven_billion

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.config.search import SearchConfig
from hpcrl.ops.search import compiled_chain, search_all, search_chain
from hpcrl.ops.search_chain import run_chain
from hpcrl.ops.search_problem import Chain, Problem
from hpcrl.ops.search_problem import Found as Plan
from hpcrl.placement.candidate import settings_with
from hpcrl.placement.plan import plan_for
from hpcrl.placement.searching import chains_of
from hpcrl.placement.settling import Found, search_for
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.simulation.clock import SECOND_NS
from hpcrl.simulation.durations import durations_of
from hpcrl.simulation.ordering import in_simulated_order, simulated_step_s
from hpcrl.simulation.simulate import simulate

WIDTHS = {
    "7B": (4096, 11008, 32, 32),
    "13B": (5120, 13824, 40, 40),
    "34B": (8192, 22016, 64, 48),
    "70B": (8192, 28672, 64, 80),
}
"""Hidden and intermediate size, heads, blocks."""
CRITIC = "7B"
CASES = (("7B", 8), ("7B", 16), ("13B", 32), ("34B", 64), ("70B", 64), ("70B", 128))
"""Of the actor, and how many GPUs there are."""
RESPONSES = {"short": 256, "long": 2048}
"""Tokens at most; half of that on average."""
SLOTS = 8
SMALL, BUDGET = 200, 0.2
"""Problems of which all plans are tried, and how many of them a search may try: of the largest that are not all tried
it tries as large a share."""
PACED_S = 1.5
"""A step on the paced host."""
STEPS, TRIES, TURNS = 5, 3, 5


class Case(NamedTuple):
    size: str
    gpus: int
    responses: str

    def __str__(self) -> str:
        return f"{self.size} on {self.gpus}, {self.responses}"


def experiment(folder: Path, case: Case) -> PPOExperiment:
    """PPO as ReaL measures it: an actor and its reference of one size, a critic of 7B."""
    paths = {}
    for size in {case.size, CRITIC}:
        hidden, inner, heads, blocks = WIDTHS[size]
        paths[size] = folder / size
        paths[size].mkdir(parents=True, exist_ok=True)
        own = {"hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads}
        shape = SHAPE | own | {"num_hidden_layers": blocks}
        (paths[size] / "config.json").write_text(json.dumps(shape))
    actor: dict[str, Any] = {"path": str(paths[case.size]), "dtype": "bf16"}
    return PPOExperiment(
        control=ControlConfig(steps=STEPS),
        cluster=ClusterConfig(nodes=case.gpus // SLOTS, workers_per_node=SLOTS, device="cuda"),
        data=DataConfig(train=str(folder / "rows.jsonl"), batch_size=512, max_prompt_tokens=1024),
        actor=TrainedModelConfig(**actor, recompute=True),
        critic=CriticConfig(path=str(paths[CRITIC]), dtype="bf16", recompute=True),
        reference=ReferenceConfig(**actor),
        reward=RewardConfig(function="gsm8k"),
        generation=GenerationConfig(max_new_tokens=RESPONSES[case.responses]),
        ppo=PPOConfig(minibatches=4, kl=KLConfig(mode="reward"), old_logprobs="sampled"),
        search=SearchConfig(device="H100"),
    )


def searched(folder: Path, case: Case) -> Found:
    return in_simulated_order(search_for(experiment(folder, case), None))


class Gain(NamedTuple):
    """Of a case: simulated seconds of a step with the heuristic's plan, if that fits, and with the best."""

    case: Case
    heuristic_s: float | None
    best_s: float

    @property
    def ratio(self) -> float | None:
        return None if self.heuristic_s is None else self.heuristic_s / self.best_s

    def __str__(self) -> str:
        return f"{self.case}: {'does not fit' if self.ratio is None else f'{self.ratio:.2f}'} ({self.best_s:.0f} s)"


def gain_of(case: Case, found: Found) -> Gain:
    heuristic, best = found.searched.starts["heuristic"], found.searched.best[0]
    fits = not heuristic.score.excess
    return Gain(case, simulated_step_s(found, heuristic) if fits else None, found.searched.simulated_s[best.plan])


def gains(folder: Path) -> Iterator[Gain]:
    for (size, gpus), responses in product(CASES, RESPONSES):
        case = Case(size, gpus, responses)
        gain = gain_of(case, searched(folder, case))
        print(f"  {gain}", flush=True)
        yield gain


def against_heuristic(work: Path) -> list[Figure]:
    found = list(gains(work / "models"))
    ratios = [gain.ratio for gain in found if gain.ratio is not None]
    told, mean = "; ".join(map(str, found)), exp(fsum(map(log, ratios)) / len(ratios))
    return [
        Figure("ReaL's heuristic ÷ searched, geometric mean", mean, "×", "≥ 1.3", told),
        Figure("the least of them", min(ratios), "×", "≥ 1"),
        Figure("cases in which the heuristic does not fit", len(found) - len(ratios), "", "", f"of {len(found)}"),
    ]


def against_brute_force(work: Path) -> list[Figure]:
    """A search that may try a fifth of the plans, beside all of them."""
    optimal, worst, plans = 0, 0.0, []
    for seed in range(SMALL):
        found = search_for(small(work / "small", random.Random(seed)), None).searched
        problem = found.choices.problem
        best = found.best[0].score if found.is_optimal else search_all(problem, 1)[0].score
        starts = [start.plan for start in found.starts.values()]
        chains = chains_of(problem, starts, int(problem.plans * BUDGET), seed)
        score = min(search_chain(problem, chain, 1)[0] for chain in chains).score
        optimal += score == best
        plans.append(problem.plans)
        if score.excess == best.excess:
            worst = max(worst, score.nanoseconds / best.nanoseconds - 1)
        else:
            worst = max(worst, (score.excess - best.excess) / problem.capacity)
    detail = f"{min(plans):,} to {max(plans):,} plans each, of which a search tries {BUDGET:.0%}"
    return [
        Figure(f"of {SMALL} small problems the best plan is found in", 100 * optimal / SMALL, "%", "≥ 99", detail),
        Figure("the worst of the others is longer by", 100 * worst, "%", "≤ 1"),
    ]


def small(folder: Path, draw: random.Random) -> PPOExperiment:
    """On two workers, or on four that leave fewer choices."""
    slots = draw.choice((2, 4))
    heads, blocks = draw.choice((8, 16, 24, 32)), draw.choice((12, 16, 24, 32))
    own = {"hidden_size": heads * 128, "num_attention_heads": heads, "num_hidden_layers": blocks}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPE | own | {"intermediate_size": heads * 344}))
    of = experiment(folder.parent / "models", Case("7B", SLOTS, "long"))
    model: dict[str, Any] = {"path": str(folder), "dtype": "bf16"}
    homes = {} if slots == 2 else {"layout": draw.choice(("d4", "d2t2", "t4", "d2p2"))}
    return replace(
        of,
        cluster=replace(of.cluster, nodes=1, workers_per_node=slots),
        data=replace(of.data, batch_size=draw.choice((64, 128, 256)), max_prompt_tokens=draw.choice((256, 1024))),
        actor=TrainedModelConfig(**model),
        critic=CriticConfig(**model, **homes),
        reference=ReferenceConfig(**model, **homes),
        generation=GenerationConfig(max_new_tokens=draw.choice((128, 512, 2048))),
    )


class Speed(NamedTuple):
    plans_s: float
    proposals_s: float


def speed(problem: Problem, start: tuple[int, ...], proposals: int, compiled: bool) -> Speed:
    """Of one thread, by its CPU time: plans that were scored, and proposals, some of which change nothing."""
    chain = Chain(start, 1, proposals)
    trace_N4 = np.zeros((proposals, 4), np.int64)
    begun = time.thread_time()
    if compiled:
        compiled_chain(problem, chain, 64, trace_N4)
        scored = int((trace_N4[:, 0] >= 0).sum())
    else:
        listed: list[tuple[int, ...]] = []
        run_chain(problem, chain, 64, listed)
        scored = sum(row[0] >= 0 for row in listed)
    taken = time.thread_time() - begun
    return Speed(scored / taken, proposals / taken)


def speeds(work: Path) -> list[Figure]:
    """On the problem of 128 GPUs, from the heuristic's plan."""
    asked = experiment(work / "models", Case("7B", 128, "short"))
    found = search_for(replace(asked, search=replace(asked.search, proposals=16)), None)
    problem, start = found.searched.choices.problem, found.searched.best[0].plan
    fast = max(speed(problem, start, 1_000_000, True) for _ in range(TURNS))  # what others do only adds to its time
    slow = speed(problem, start, 400, False)
    detail = f"{fast.proposals_s:,.0f} proposals, of which some change nothing"
    return [
        Figure("plans a second and core for 128 GPUs, C++", fast.plans_s / 1e6, "million", "≥ 1", detail),
        Figure("C++ ÷ Python", fast.plans_s / slow.plans_s, "×", "≥ 200", f"Python: {slow.plans_s:,.0f} a second"),
    ]


def on_paced_host(work: Path) -> list[Figure]:
    """Both plans on eight real workers, a node's."""
    found = searched(work / "models", Case("7B", 8, "long"))
    plans = {"heuristic": found.searched.starts["heuristic"], "searched": found.searched.best[0]}
    scale = PACED_S / found.searched.simulated_s[plans["searched"].plan]
    paced = {name: on_workers_that_sleep(found, plan, scale) for name, plan in plans.items()}
    expected = {name: paced_step_s(it) for name, it in paced.items()}
    measured = {name: min(_made_s(it, work / f"paced-{name}-{n}") for n in range(TRIES)) for name, it in paced.items()}
    predicted, gain = (of["heuristic"] / of["searched"] for of in (expected, measured))
    listed = f"gain {gain:.3f}, predicted {predicted:.3f}"
    return [Figure("gain on 8 paced workers, off by", 100 * abs(gain / predicted - 1), "%", "≤ 5", listed)]


def on_workers_that_sleep(found: Found, plan: Plan, scale: float) -> Any:
    """The toy as a plan says, in scaled time."""
    candidate = found.searched.candidate(plan)
    settled = settings_with(found.experiment, candidate)
    lasting = durations_of(replace(found.costs, experiment=settled, _made={}), plan_for(settled))
    table = {call: scale * lasts / SECOND_NS for call, lasts in lasting.calls.items()}
    table |= dict.fromkeys(candidate.homes, 0.0)
    for model, lasts in lasting.moves.items():
        table[model.role] = max(table[model.role], scale * lasts / SECOND_NS)
    return placed(candidate, table, STEPS, found.experiment.cluster.workers_per_node)


def paced_step_s(experiment: Any) -> float:
    (attempt,) = simulate(experiment, durations(experiment), rows(experiment)).attempts
    return step_s(attempt.costs())


def _made_s(experiment: Any, folder: Path) -> float:
    folder.mkdir(parents=True)
    run = create_run(folder / "run", experiment)
    if finish(run, nodes=1) != [0]:
        raise RuntimeError(outputs(run))
    (attempt,) = attempts(run)
    return step_s(attempt.costs())


def command(work: Path) -> list[Figure]:
    """`hpcrl search` of 128 GPUs, the whole process."""
    write_seven_billion(work, batch_size=1024)
    where = ["--nodes", "16", "--cluster.workers_per_node", "8", "--cluster.device", "cuda", "--device", "H100"]
    what = ["--data.max_prompt_tokens", "1024", "--generation.max_new_tokens", "2048", "--json"]
    begun = time.perf_counter()
    cost = cost_of(["env", "-C", str(work), sys.executable, "-m", "hpcrl", "search", "ppo.yaml", *where, *what])
    wall = time.perf_counter() - begun
    return [Figure("hpcrl search for 128 GPUs", wall, "s", "≤ 60", f"{cost.cpu_s:.0f} s of CPU, {cost.peak >> 20} MiB")]


def plans(work: Path) -> list[Figure]:
    """What is found; the same on any machine."""
    shutil.rmtree(work, ignore_errors=True)
    return [*against_heuristic(work), *against_brute_force(work)]


def _emptied(measure: Callable[[Path], list[Figure]], work: Path) -> list[Figure]:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return measure(work)


TIMES: Mapping[str, Callable[[Path], list[Figure]]] = {
    "plans": partial(_emptied, speeds),
    "paced": partial(_emptied, on_paced_host),
    "command": partial(_emptied, command),
}
"""How long a search takes, in families that each take three minutes at most."""
