"""Every switch of a policy's loss, for any split into micro-batches, against float64 formulas written out."""

import itertools
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcrl.algos.functional.losses import AGGREGATIONS, Denominators, token_weights
from hpcrl.algos.policy import policy_loss
from hpcrl.config.kl import KLConfig
from hpcrl.recipes.policy import PolicyConfig

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
LONGEST = 20
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
    unused = {"entropy"} if config.kl.mode == "loss" else {"ref_log_probs", "entropy"}
    return {name: column for name, column in columns.items() if name not in unused}


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


@pytest.mark.parametrize("seed", range(40))
def test_loss_and_gradient_equal_the_formulas_whatever_is_set(seed):
    pick = random.Random(seed)
    kl = KLConfig(mode="loss", coef=0.2, estimator=pick.choice(["k1", "k2", "k3", "abs"]))
    low, high = pick.choice([(0.2, 0.2), (0.1, 0.28), (3e-4, 4e-4), (1.0, 3.0)])
    config = PolicyConfig(
        clip_low=low,
        clip_high=high,
        dual_clip=pick.choice([None, 1.1, 3.0]),
        ratio=pick.choice(["token", "sequence"]),
        objective=pick.choice(["clip", "cispo"]),
        aggregation=pick.choice(sorted(AGGREGATIONS)),
        importance_cap=pick.choice([None, 1.05, 2.0]),
        entropy_coef=pick.choice([0.0, 0.03]),
        kl=pick.choice([KLConfig(), kl]),
    )
    cuts = [0, *sorted(pick.sample(range(1, 6), pick.randint(0, 4))), 6]
    rows = pick.sample(range(6), 6)
    (loss, gradient), (expected, slope) = (
        in_parts(config, [rows[a:b] for a, b in itertools.pairwise(cuts)]),
        loss_by_hand(config),
    )
    assert loss == pytest.approx(expected, rel=1e-11, abs=1e-11)
    torch.testing.assert_close(gradient, slope, rtol=1e-11, atol=1e-11)


def test_log_probabilities_of_the_moment_make_every_ratio_one():
    log_probs, columns, mask = drawn()
    cu_labels = torch.tensor([0, *LENGTHS]).cumsum(0)
    says = SimpleNamespace(log_probs=log_probs, entropy=columns["entropy"], cu_labels=cu_labels)
    given = {name: columns[name] for name in ("advantages", "sampled_log_probs")}
    given |= {"weights": torch.ones(len(mask)), "mask": mask.double()}
    _, statistics = policy_loss(says, given, PolicyConfig(), 0.0)
    total, weight = statistics["ratio"]
    assert total == weight and statistics["approx_kl"][0] == statistics["clip_fraction"][0] == 0
    assert "entropy" not in statistics
