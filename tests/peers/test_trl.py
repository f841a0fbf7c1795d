"""Our advantages, losses and gradients equal those of TRL 1.16's own trainers, in float64."""

import random

import pytest
import torch
from support.drawn import bounds, draw, our_policy_loss, packed
from support.peers import Case, ask

from hpcrl.algos.dpo import preferences
from hpcrl.algos.functional.groups import Groups, standardised
from hpcrl.algos.functional.kl import token_kl
from hpcrl.algos.functional.preferences import bradley_terry_loss
from hpcrl.algos.functional.sequences import sequence_sums
from hpcrl.algos.rloo import left_out
from hpcrl.config.kl import KLConfig
from hpcrl.recipes.dpo import DPOConfig
from hpcrl.recipes.policy import PolicyConfig

PER_GROUP = 4


# ── advantages ────────────────────────────────────────────────────────────────────────────────────────────────────────
def scores(seed, groups=3):
    """Some responses have no score; of the last group only one has."""
    pick = random.Random(seed)
    found = [None if pick.random() < 0.2 else pick.gauss(0, 1) for _ in range(groups * PER_GROUP)]
    found[:2] = [0.5, -0.25]
    return [*found[:-PER_GROUP], *[None] * (PER_GROUP - 1), 0.7]


def grouped(found):
    numbers = torch.tensor([float("nan") if score is None else score for score in found], dtype=torch.float64)
    counted = ~numbers.isnan()
    groups = Groups(torch.arange(len(found)) // PER_GROUP, counted, len(found) // PER_GROUP)
    return numbers.nan_to_num(), groups


def group_relative(std, seed):
    """TRL adds 1e-4 to a deviation, of which a factor is in float32; verl and we add 1e-6."""
    found = scores(seed)
    numbers, groups = grouped(found)

    def ours():
        advantages = standardised(numbers, groups, std)
        if std == "none":
            return [advantages]
        deviations = standardised(numbers, groups, "none") / advantages.where(advantages != 0, 1.0)
        return [advantages * deviations / (deviations - 1e-6 + 1e-4)]

    arguments = {"kind": "grpo", "scores": found, "per_group": PER_GROUP, "scale": std}
    return Case(f"grpo {std} {seed}", "trl_advantages", arguments, ours, lambda answer: [answer], 1e-7)


def left_one_out(beta, seed):
    """With the penalty in the reward, where ours is a sum over tokens too."""
    found = scores(seed)
    columns, mask = draw(seed, whole=True)
    count = len(mask)
    found = (found * count)[: count // PER_GROUP * PER_GROUP]
    kept = {name: rows[: len(found)] for name, rows in columns.items()}
    numbers, groups = grouped(found)
    old, reference = (packed(kept[name], kept) for name in ("log_probs", "ref_log_probs"))
    kl = sequence_sums(token_kl("k1", old, reference), bounds(kept))
    arguments = {"kind": "rloo", "scores": found, "per_group": PER_GROUP, "beta": beta}
    arguments |= {"columns": kept, "mask": kept["length"]}
    return Case(
        f"rloo {beta} {seed}",
        "trl_advantages",
        arguments,
        lambda: [left_out(numbers - beta * kl, groups)],
        lambda answer: [answer],
    )


# ── losses ────────────────────────────────────────────────────────────────────────────────────────────────────────────
AGGREGATIONS = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "cispo": "token-mean",
}


def policy_loss(seed):
    """TRL's bound of CISPO is absolute and from above alone; its entropy bonus is always a mean over tokens."""
    pick = random.Random(seed)
    kind, level = pick.choice(sorted(AGGREGATIONS)), pick.choice(["token", "sequence"])
    low, high = pick.choice([(0.2, 0.2), (0.1, 0.28), (3e-4, 4e-4)])
    dual_clip, beta = pick.choice([None, 1.5]), pick.choice([0.0, 0.04])
    entropy_coef = pick.choice([0.0, 0.02]) if AGGREGATIONS[kind] == "token-mean" else 0.0
    columns, mask = draw(seed, whole=True)
    columns["advantages"] = [[row[0]] * len(row) for row in columns["advantages"]]
    config = PolicyConfig(
        clip_low=1.0 if kind == "cispo" else low,
        clip_high=high,
        dual_clip=dual_clip,
        ratio=level,
        objective="cispo" if kind == "cispo" else "clip",
        aggregation=AGGREGATIONS[kind],
        kl=KLConfig(mode="loss", coef=beta) if beta else KLConfig(),
        entropy_coef=entropy_coef,
    )
    arguments = {
        "kind": "grpo",
        "columns": columns,
        "mask": mask.tolist(),
        "constant": 20,
        "beta": beta,
        "entropy_coef": entropy_coef,
        "delta": dual_clip,
        "loss_type": kind,
        "importance_sampling_level": level,
        "epsilon_low": low,
        "epsilon_high": 1 + high if kind == "cispo" else high,
    }
    return Case(
        f"{kind} {level} {seed}",
        "trl_policy_loss",
        arguments,
        lambda: our_policy_loss(columns, mask, config, 20.0),
    )


def rloo_gradient(seed):
    """TRL's ratio is the product over a response; at the policy that sampled it, the gradient is ours."""
    columns, mask = draw(seed, whole=True)
    columns["old_log_probs"] = columns["log_probs"]
    columns["advantages"] = [[row[0]] * len(row) for row in columns["advantages"]]
    config = PolicyConfig(aggregation="seq-mean-token-sum")
    own = {"kind": "rloo", "epsilon_low": 0.2, "epsilon_high": 0.2}
    return Case(
        f"rloo gradient {seed}",
        "trl_policy_loss",
        {"columns": columns, "mask": mask.tolist(), **own},
        lambda: our_policy_loss(columns, mask, config)[1:],
        lambda answer: answer[1:],
    )


# ── pairs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def by_turns(numbers):
    """All chosen and then all rejected ones → each pair's chosen and rejected one."""
    return torch.stack(numbers.chunk(2), dim=1).reshape(-1)


def pairs(kind, seed, label_smoothing=0.0, only=None):
    """cDPO is not among TRL's losses; its `aot` is the same for a single pair."""
    columns, mask = draw(seed, whole=True)
    if only is not None:
        columns, mask = {name: rows[:only] for name, rows in columns.items()}, mask[:only]
    there = torch.tensor(columns["length"])
    config = DPOConfig(loss="ipo" if kind == "ipo" else "sigmoid", beta=0.3, label_smoothing=label_smoothing)

    def ours():
        log_probs = torch.tensor(columns["log_probs"], dtype=torch.float64).requires_grad_()
        reference = torch.tensor(columns["ref_log_probs"], dtype=torch.float64)
        sums = [by_turns((numbers * there).sum(1)) for numbers in (log_probs, reference)]
        loss = preferences(*sums, by_turns(there.sum(1)).double(), config).loss_Q.mean()
        loss.backward()
        return loss.item(), log_probs.grad

    arguments = {"kind": kind, "log_probs": columns["log_probs"], "ref_log_probs": columns["ref_log_probs"]}
    arguments |= {"mask": mask.astype(int).tolist(), "beta": 0.3, "label_smoothing": label_smoothing}
    return Case(f"{kind} {label_smoothing} {seed}", "trl_dpo_loss", arguments, ours)


def scored_pairs(with_margins, centring):
    drawn = torch.randn(3, 7, generator=torch.Generator().manual_seed(1)).double()
    margins = drawn[2].abs() if with_margins else torch.zeros(7).double()

    def ours():
        both = torch.cat([drawn[0], drawn[1]]).requires_grad_()
        loss = bradley_terry_loss(both[:7], both[7:], margins, centring or 0.0).mean()
        loss.backward()
        return loss.item(), both.grad

    return Case(
        f"reward model margins={with_margins} {centring}",
        "trl_reward_loss",
        {
            "chosen": drawn[0].tolist(),
            "rejected": drawn[1].tolist(),
            "margins": margins.tolist() if with_margins else None,
            "centring": centring,
        },
        ours,
    )


CASES = [
    *(group_relative(std, seed) for std in ("group", "batch", "none") for seed in (0, 1)),
    *(left_one_out(beta, seed) for beta in (0.0, 0.05) for seed in (2, 3, 4)),
    *map(policy_loss, range(80)),
    *map(rloo_gradient, (5, 6)),
    *(pairs(kind, seed) for kind in ("sigmoid", "ipo") for seed in (7, 8)),
    pairs("aot", 9, label_smoothing=0.2, only=2),
    *(scored_pairs(*switches) for switches in ((False, None), (True, None), (True, 0.01))),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return ask([(case.function, case.arguments) for case in CASES], tmp_path_factory.mktemp("trl"))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_ours_equals_trls(answers, number):
    CASES[number].compare(answers[number])
