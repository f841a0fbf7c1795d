"""The advantages of all algorithms, and every switch of the loss, against float64 formulas written out one by one."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.rollouts import group_rollout, policy_experiment

from hpcrl.algos import grpo, ppo, reinforce_plus_plus, remax
from hpcrl.algos.estimates import estimate
from hpcrl.algos.functional.losses import Denominators, token_weights
from hpcrl.algos.functional.totals import alone
from hpcrl.algos.policy import policy_loss
from hpcrl.data.order import group_of
from hpcrl.engines.engine import Sequences
from hpcrl.recipes.policy import KLConfig, PolicyConfig
from hpcrl.workers.host import Work

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
BATCH = group_rollout(rows=5, per_row=4)
LONGEST = 20


# ── advantages ────────────────────────────────────────────────────────────────────────────────────────────────────────
def found(batch, whole, name, section, total=alone, coef=0.3):
    experiment = policy_experiment(name, **section)
    own = getattr(experiment, name)
    work = Work(1, "actor_train", 0, batch, (whole.ids[:7], whole.ids[7:]))
    made = estimate(work, experiment, coef, total)
    return MODULES[name].advantages(made, own)


MODULES = {"grpo": grpo, "ppo": ppo, "reinforce_plus_plus": reinforce_plus_plus, "remax": remax}


def numbers(batch, key):
    return [row.astype(np.float64).tolist() for row in batch.rows(key)]


def estimator(name, d):
    bounded = min(max(d, -20.0), 20.0)
    k3 = min(max(math.exp(-bounded) - 1 + bounded, -10.0), 10.0)
    return {"k1": d, "k2": d * d / 2, "k3": k3, "abs": abs(d)}[name]


def rewards_by_hand(batch, own, coef, key=""):
    """Of each sample that counts its tokens' rewards; of the others nothing."""
    rewards = []
    for i, response in enumerate(batch.rows(f"{key}responses")):
        score, ended = numbers(batch, f"{key}rewards")[i][0], bool(batch.rows(f"{key}finished")[i][0])
        if not key and (math.isnan(score) or (own.cut == "mask" and not ended)):
            rewards.append(None)
            continue
        score = (score - own.reward_bias) * own.reward_scale
        if own.reward_clip is not None:
            score = min(max(score, -own.reward_clip), own.reward_clip)
        if own.overlong_buffer is not None:
            into = (len(response) - (LONGEST - own.overlong_buffer)) / own.overlong_buffer
            score -= min(max(into, 0.0), 1.0) * own.overlong_penalty
        if own.cut == "penalty" and not ended:
            score -= own.cut_penalty
        tokens = [0.0] * len(response)
        if own.kl.mode == "reward" and not key:
            pairs = zip(numbers(batch, "logprobs")[i], numbers(batch, "ref_logprobs")[i], strict=True)
            tokens = [-coef * estimator(own.kl.by, a - b) for a, b in pairs]
        tokens[-1] += score
        if own.cut == "bootstrap" and not ended and not key:
            tokens[-1] += own.discount * numbers(batch, "values_after")[i][0]
        rewards.append(tokens)
    if own.whiten_rewards and not key:
        every = [x for row in rewards if row is not None for x in row]
        mean = sum(every) / len(every)
        spread = math.sqrt(sum((x - mean) ** 2 for x in every) / (len(every) - 1) + 1e-8)
        rewards = [None if row is None else [(x - mean) / spread + mean for x in row] for row in rewards]
    return rewards


def whitened(rows):
    every = np.array([x for row in rows if row is not None for x in row])
    deviation = math.sqrt(every.var(ddof=1) + 1e-8)
    return [None if row is None else [(x - every.mean()) / deviation for x in row] for row in rows]


def to_come(tokens, discount):
    return [sum(discount ** (k - t) * tokens[k] for k in range(t, len(tokens))) for t in range(len(tokens))]


def gae(tokens, values, discount, lam):
    found, later, after = [], 0.0, 0.0
    for reward, value in zip(tokens[::-1], values[::-1], strict=True):
        later = reward + discount * after - value + discount * lam * later
        after = value
        found.insert(0, later)
    return found


def by_hand(batch, name, own, coef=0.3):
    rewards = rewards_by_hand(batch, own, coef)
    sums = [None if row is None else sum(row) for row in rewards]
    groups = {}
    for sample, total in zip(batch.ids, sums, strict=True):
        if total is not None:
            groups.setdefault(group_of(sample), []).append(total)
    scores = [total for total in sums if total is not None]

    def of_group(i):
        return groups[group_of(batch.ids[i])]

    def above(i):
        return sums[i] - (np.mean(of_group(i)) if len(of_group(i)) > 1 else 0.0)

    rows = []
    for i, tokens in enumerate(rewards):
        if tokens is None:
            rows.append(None)
        elif name == "grpo":
            deviation = {"none": 1.0, "batch": np.std(scores, ddof=1) + 1e-6}.get(own.std)
            if own.std == "group":
                deviation = (np.std(of_group(i), ddof=1) if len(of_group(i)) > 1 else 1.0) + 1e-6
            rows.append([above(i) / deviation] * len(tokens))
        elif name == "reinforce_plus_plus":
            rows.append([above(i)] * len(tokens) if own.baseline else to_come(tokens, own.discount))
        elif name == "remax":
            baseline = rewards_by_hand(batch, own, coef, "base_")[i]
            rows.append([number - sum(baseline) for number in to_come(tokens, 1.0)])
        else:
            rows.append(gae(tokens, numbers(batch, "values")[i], own.discount, own.gae_lambda))
    if name == "reinforce_plus_plus" or getattr(own, "whiten_advantages", False):
        rows = whitened(rows)
    lengths = batch.length("responses")
    return [x for row, length in zip(rows, lengths, strict=True) for x in (row or [0.0] * length)]


KL = KLConfig(mode="reward", coef=0.3)
SHAPED = {"reward_bias": 0.2, "reward_scale": 1.5, "reward_clip": 1.1}
ADVANTAGES = [
    ("grpo", {}),
    ("grpo", {"std": "batch"}),
    ("grpo", {"std": "none", "cut": "mask"}),
    ("grpo", {"kl": KL, **SHAPED}),
    ("grpo", {"cut": "penalty", "cut_penalty": 0.7, "overlong_buffer": 9, "overlong_penalty": 0.5}),
    ("grpo", {"kl": replace(KL, estimator="k2"), "whiten_rewards": True}),
    ("reinforce_plus_plus", {"kl": replace(KL, estimator="k3")}),
    ("reinforce_plus_plus", {"kl": replace(KL, estimator="abs"), "discount": 0.9, "cut": "mask"}),
    ("reinforce_plus_plus", {"baseline": True, "kl": KL, "cut": "penalty"}),
    ("remax", {}),
    ("remax", {"kl": KL, "cut": "mask", "overlong_buffer": 9, **SHAPED}),
    ("ppo", {"kl": KL, "discount": 0.9, "gae_lambda": 0.5, "cut": "bootstrap"}),
    ("ppo", {"whiten_advantages": False, "gae_lambda": 0.95, "cut": "mask", "whiten_rewards": True}),
]


@pytest.mark.parametrize(("name", "section"), ADVANTAGES)
def test_advantages_equal_the_formulas(name, section):
    own = getattr(policy_experiment(name, **section), name)
    assert any(math.isnan(row[0]) for row in BATCH.rows("rewards"))
    expected = torch.tensor(by_hand(BATCH, name, own), dtype=torch.float64)
    torch.testing.assert_close(found(BATCH, BATCH, name, section), expected, **TOLERANCE)


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(2) as ranks:
        yield ranks


PARTS = ((BATCH.ids[1::2], BATCH.ids[::2]), (BATCH.ids[:3], BATCH.ids[3:]), ((), BATCH.ids))
"""The samples of a group are on both ranks."""


def on_ranks(context, cases, parts):
    batch = BATCH.select(parts[context.rank])
    return [found(batch, BATCH, name, section, everyone(context).total) for name, section in cases]


@pytest.mark.parametrize("parts", PARTS)
def test_ranks_that_hold_any_part_of_a_group_find_what_one_finds(pool, parts):
    here = pool.run(on_ranks, ADVANTAGES, parts)
    ids = [sample for part in parts for sample in part]
    cuts = np.cumsum(BATCH.select(ids).length("responses"))[:-1]
    for case, (name, section) in enumerate(ADVANTAGES):
        rows = np.split(torch.cat([rank[case] for rank in here]).numpy(), cuts)
        together = [torch.from_numpy(rows[ids.index(sample)]) for sample in BATCH.ids]
        torch.testing.assert_close(torch.cat(together), found(BATCH, BATCH, name, section), **TOLERANCE)


# ── losses ────────────────────────────────────────────────────────────────────────────────────────────────────────────
LENGTHS = [3, 1, 7, 4, 6, 2]
LOSSES = [
    {},
    {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": None},
    {"dual_clip": 1.2, "entropy_coef": 0.03, "aggregation": "seq-mean-token-sum"},
    {"ratio": "sequence", "clip_low": 0.02, "clip_high": 0.03, "aggregation": "seq-mean-token-mean"},
    {"objective": "cispo", "clip_low": 0.1, "clip_high": 0.2, "aggregation": "token-sum"},
    {"objective": "cispo", "ratio": "sequence", "importance_cap": 1.1},
    {"importance_cap": 1.05, "aggregation": "seq-mean-token-sum-norm"},
    *({"kl": KLConfig(mode="loss", coef=0.2, estimator=kind)} for kind in ("k1", "k2", "k3", "abs")),
    {"kl": KLConfig(mode="loss", coef=0.2), "importance_cap": 1.2, "entropy_coef": 0.01},
]
COLUMNS = ("old_log_probs", "sampled_log_probs", "ref_log_probs", "advantages", "entropy")


def drawn():
    draw = torch.Generator().manual_seed(5)
    log_probs = -torch.rand(sum(LENGTHS), generator=draw, dtype=torch.float64) * 3
    near = {name: log_probs + torch.randn(len(log_probs), generator=draw).double() * 0.3 for name in COLUMNS[:3]}
    others = {name: torch.randn(len(log_probs), generator=draw).double() for name in COLUMNS[3:]}
    mask = torch.rand(len(log_probs), generator=draw) < 0.8
    mask[:3] = False  # of the first sequence nothing counts
    mask[3] = True
    return log_probs, {**near, **others}, mask


def held(columns, config):
    """The columns that a loss is given under these settings."""
    unused = set() if config.importance_cap else {"sampled_log_probs"}
    unused |= set() if config.kl.mode == "loss" else {"ref_log_probs"}
    return {name: column for name, column in columns.items() if name not in {*unused, "entropy"}}


def in_parts(config, parts):
    """The loss and the gradient in log-probabilities, of micro-batches of whole sequences."""
    log_probs, columns, mask = drawn()
    log_probs.requires_grad_()
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
    rows = [mask[a:b] for a, b in itertools.pairwise(bounds)]
    whole = Denominators(int(mask.sum()), sum(bool(row.any()) for row in rows), float(LONGEST))
    loss = 0.0
    for part in parts:
        places = torch.cat([torch.arange(bounds[i], bounds[i + 1]) for i in part])
        cu_labels = torch.tensor([0, *(LENGTHS[i] for i in part)]).cumsum(0)
        weights = token_weights(config.aggregation, mask[places], cu_labels, whole)
        here = {name: column[places] for name, column in held(columns, config).items()}
        says = SimpleNamespace(log_probs=log_probs[places], entropy=columns["entropy"][places], cu_labels=cu_labels)
        given = {**here, "weights": weights, "mask": mask[places].double()}
        share, _ = policy_loss(says, given, config, config.kl.coef)
        share.backward()
        loss += share.item()
    return loss, log_probs.grad


def loss_by_hand(config):
    """Token by token, by automatic differentiation of the formula as it is printed."""
    log_probs, columns, mask = drawn()
    log_probs.requires_grad_()
    bounds = [0, *np.cumsum(LENGTHS).tolist()]
    kept = [[t for t in range(a, b) if mask[t]] for a, b in itertools.pairwise(bounds)]
    tokens, sequences = sum(map(len, kept)), sum(bool(row) for row in kept)
    total = torch.zeros((), dtype=torch.float64)
    for row in kept:
        for t in row:
            share = {
                "token-mean": 1 / tokens,
                "seq-mean-token-mean": 1 / sequences / len(row),
                "seq-mean-token-sum": 1 / sequences,
                "seq-mean-token-sum-norm": 1 / sequences / LONGEST,
                "token-sum": 1.0,
            }[config.aggregation]
            total = total + share * token_by_hand(log_probs, columns, config, row, t)
    total.backward()
    return total.item(), log_probs.grad


def token_by_hand(log_probs, columns, config, row, t):
    old, advantage = columns["old_log_probs"], columns["advantages"][t]
    ratio = torch.exp(log_probs[t] - old[t])
    if config.ratio == "sequence":
        mean = sum(float(log_probs[k].detach() - old[k]) for k in row) / len(row)
        ratio = math.exp(mean) * torch.exp(log_probs[t] - float(log_probs[t].detach()))
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    if config.objective == "cispo":
        loss = -float(bounded.detach()) * advantage * log_probs[t]
    else:
        loss = -min(ratio * advantage, bounded * advantage)
        if config.dual_clip is not None and advantage < 0:
            loss = min(loss, -config.dual_clip * advantage)
    if config.importance_cap is not None:
        loss = loss * min(math.exp(old[t] - columns["sampled_log_probs"][t]), config.importance_cap)
    if config.kl.mode == "loss":
        d = log_probs[t] - columns["ref_log_probs"][t]
        k = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d, "abs": abs(d)}[config.kl.by]
        loss = loss + config.kl.coef * k
    return loss - config.entropy_coef * columns["entropy"][t]


@pytest.mark.parametrize("parts", [[range(6)], [[5, 0], [3], [1, 4, 2]], [[i] for i in range(6)]])
@pytest.mark.parametrize("switches", LOSSES)
def test_loss_and_gradient_equal_the_formulas_for_any_split(switches, parts):
    config = PolicyConfig(**switches)
    loss, gradient = in_parts(config, parts)
    expected, slope = loss_by_hand(config)
    assert loss == pytest.approx(expected, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(gradient, slope, **TOLERANCE)
    assert slope.abs().max() > 0


def test_log_probabilities_of_the_moment_make_every_ratio_one():
    log_probs, columns, mask = drawn()
    cu_labels = torch.tensor([0, *LENGTHS]).cumsum(0)
    says = SimpleNamespace(log_probs=log_probs, entropy=columns["entropy"], cu_labels=cu_labels)
    given = {"advantages": columns["advantages"], "weights": torch.ones(len(mask)), "mask": mask.double()}
    _, statistics = policy_loss(says, given, PolicyConfig(), 0.0)
    total, weight = statistics["ratio"]
    assert total == weight and statistics["approx_kl"][0] == statistics["clip_fraction"][0] == 0
    assert "entropy" not in statistics


def test_sequences_name_what_counts():
    made = estimate(Work(1, "actor_train", 0, BATCH, (BATCH.ids,)), policy_experiment("grpo"), 0.0, alone)
    assert isinstance(made.sequences, Sequences)
    assert made.sequences.counted.tolist() == [not math.isnan(row[0]) for row in BATCH.rows("rewards")]
