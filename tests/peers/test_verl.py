"""Our advantages, losses and gradients equal those of verl 0.9.1's own functions, in float64."""

import random

import pytest
import torch
from support.drawn import draw, our_policy_loss, packed, padded, weights_of
from support.peers import Case, ask
from support.rollouts import group_rollout, policy_experiment

from hpcrl.algos import grpo, ppo, reinforce_plus_plus, remax, rloo
from hpcrl.algos.estimates import estimate
from hpcrl.algos.functional.advantages import whiten
from hpcrl.algos.functional.kl import KL_ESTIMATORS, adapted_kl_coef, token_kl
from hpcrl.algos.functional.losses import AGGREGATIONS, importance_weights, value_loss
from hpcrl.algos.functional.rewards import overlong_penalty
from hpcrl.algos.functional.totals import alone
from hpcrl.config.kl import KLConfig
from hpcrl.data.order import group_of
from hpcrl.models.logprobs import label_logprobs
from hpcrl.recipes.policy import PolicyConfig
from hpcrl.workers.host import Work

WHITENED = 1e-8
"""verl's means over a mask are over 1e-8 more than what counts, or in float32."""
COEF = 0.3


# ── advantages ────────────────────────────────────────────────────────────────────────────────────────────────────────
def scored_rollout(seed):
    """Every response has a score, as verl needs it; a group has three, the others four."""
    whole = group_rollout(rows=5, per_row=4, seed=seed)
    return whole.select([sample for i, sample in enumerate(whole.ids) if i != 6])


def in_rows(batch):
    """Which tokens are there, as the columns of a drawn mini-batch say it."""
    lengths = batch.length("responses")
    return {"length": [[int(t < length) for t in range(max(lengths))] for length in lengths]}


def made_of(batch, name, section):
    experiment = policy_experiment(name, **section)
    made = estimate(Work(1, "actor_train", 0, batch, (batch.ids,)), experiment, COEF, alone)
    return made, getattr(experiment, name)


def masked(rows, lengths):
    return (torch.tensor(rows, dtype=torch.float64) * torch.tensor(lengths)).tolist()


KL = KLConfig(mode="reward", coef=COEF)
OUTCOMES = [
    ("grpo", grpo, "grpo", {}),
    ("grpo", grpo, "grpo", {"std": "none", "kl": KL}),
    ("rloo", rloo, "rloo", {"kl": KL}),
    ("reinforce_plus_plus", reinforce_plus_plus, "reinforce_plus_plus", {"kl": KL, "discount": 0.9}),
    ("reinforce_plus_plus", reinforce_plus_plus, "reinforce_plus_plus_baseline", {"baseline": True, "kl": KL}),
    ("remax", remax, "remax", {"kl": KL}),
]


def outcome(name, module, estimator, section, seed):
    batch = scored_rollout(seed)
    columns, (made, own) = in_rows(batch), made_of(batch, name, section)
    arguments = {
        "estimator": estimator,
        "rewards": padded(made.rewards_N, columns).tolist(),
        "mask": columns["length"],
        "groups": [group_of(sample) for sample in batch.ids],
    }
    if estimator == "grpo":
        arguments["std"] = own.std == "group"
    if estimator == "reinforce_plus_plus":
        arguments["discount"] = own.discount
    if estimator == "remax":
        arguments["baselines"] = [float(row[0]) for row in batch.rows("base_rewards")]
    return Case(
        f"{estimator} {','.join(section)} {seed}",
        "verl_advantages",
        arguments,
        lambda: [padded(module.advantages(made, own), columns)],
        lambda answer: [masked(answer, columns["length"])],
        WHITENED if name == "reinforce_plus_plus" else 1e-12,
    )


def generalised(section, seed, part):
    """Advantages, whitened as always in verl, or returns."""
    batch = scored_rollout(seed)
    columns, (made, own) = in_rows(batch), made_of(batch, "ppo", {"kl": KL, **section})
    arguments = {
        "rewards": padded(made.rewards_N, columns).tolist(),
        "values": padded(made.double("values"), columns).tolist(),
        "mask": columns["length"],
        "discount": own.discount,
        "gae_lambda": own.gae_lambda,
    }
    found = (ppo.advantages(made, own), ppo.generalised(made, own)[1])[part]
    return Case(
        f"{('gae', 'returns')[part]} {section} {seed}",
        "verl_gae",
        arguments,
        lambda: [padded(found, columns)],
        lambda answer: [masked(answer[part], columns["length"])],
        (WHITENED, 1e-12)[part],
    )


def whitening(shift, seed):
    columns, mask = draw(seed)
    there = packed(mask.tolist(), columns).bool()
    return Case(
        f"whiten shift={shift} {seed}",
        "verl_whiten",
        {"values": columns["entropy"], "mask": mask.tolist(), "shift": shift},
        lambda: [padded(whiten(packed(columns["entropy"], columns), alone, there, shift=shift), columns)],
        lambda answer: [masked(answer, mask.tolist())],
        WHITENED,
    )


def reward_with_kl(estimator, seed):
    """Rewards, the batch's KL, and the weight that follows from it."""
    batch = scored_rollout(seed)
    columns = in_rows(batch)
    made, _ = made_of(batch, "ppo", {"kl": KLConfig(mode="reward", coef=COEF, estimator=estimator)})
    plain, _ = made_of(batch, "ppo", {})
    numbers = {
        "scores": padded(plain.rewards_N, columns).tolist(),
        "log_probs": padded(made.double("logprobs"), columns).tolist(),
        "ref_log_probs": padded(made.double("ref_logprobs"), columns).tolist(),
    }
    rest = {"mask": columns["length"], "estimator": estimator, "coef": COEF, "target": 0.4, "horizon": 70.0}
    following = adapted_kl_coef(COEF, made.mean_kl, 0.4, 70.0, made.samples, 0.2)
    return Case(
        f"kl in reward {estimator} {seed}",
        "verl_kl_in_reward",
        {**numbers, **rest},
        lambda: [padded(made.rewards_N, columns), made.mean_kl, following],
    )


def overlong():
    lengths = list(range(1, 21))
    return Case(
        "overlong",
        "verl_overlong",
        {"lengths": lengths, "longest": 20, "buffer": 8, "penalty": 0.5},
        lambda: [-overlong_penalty(torch.tensor(lengths), 20, 8, 0.5)],
        lambda answer: [answer],
    )


# ── losses ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def switches(seed):
    """A random setting of every switch that verl's loss has."""
    pick = random.Random(seed)
    low, high = pick.choice([(0.2, 0.2), (0.1, 0.28), (3e-4, 4e-4), (0.5, 2.0)])
    mode = pick.choice(["vanilla", "vanilla", "gspo", "cispo"])
    kl = pick.choice([None, *KL_ESTIMATORS])
    return mode, PolicyConfig(
        clip_low=low,
        clip_high=high,
        dual_clip=pick.choice([1.1, 3.0]) if mode == "vanilla" else None,
        ratio="sequence" if mode == "gspo" else "token",
        objective="cispo" if mode == "cispo" else "clip",
        aggregation=pick.choice(sorted(AGGREGATIONS)),
        importance_cap=pick.choice([None, 1.05, 2.0]),
        kl=KLConfig(mode="loss", coef=0.2, estimator=kl) if kl else KLConfig(),
        entropy_coef=pick.choice([0.0, 0.03]),
    )


def policy_loss(seed):
    mode, config = switches(seed)
    columns, mask = draw(seed, spread=20.0 if seed % 7 == 0 else 0.4)
    arguments = {
        "columns": columns,
        "mask": mask.tolist(),
        "mode": mode,
        "aggregation": config.aggregation,
        "constant": 20 if config.aggregation == "seq-mean-token-sum-norm" else None,
        "clip_ratio_low": config.clip_low,
        "clip_ratio_high": config.clip_high,
        "clip_ratio_c": config.dual_clip or 3.0,
        "entropy_coeff": config.entropy_coef,
        "kl": (config.kl.by, config.kl.coef) if config.kl.mode == "loss" else None,
        "cap": config.importance_cap,
    }
    name = f"{mode} {config.aggregation} {seed}"
    return Case(name, "verl_policy_loss", arguments, lambda: our_policy_loss(columns, mask, config, 20.0))


def critic_loss(aggregation, clip, seed):
    columns, mask = draw(seed)
    values, old, returns = (columns[name] for name in ("log_probs", "old_log_probs", "advantages"))

    def ours():
        weights, counting = weights_of(columns, mask, aggregation, 20.0)
        predicted = packed(values, columns).requires_grad_()
        loss, clipped = value_loss(predicted, packed(old, columns), packed(returns, columns), clip)
        (loss * weights).sum().backward()
        share = (clipped * counting).sum() / counting.sum()
        return (loss * weights).sum().item(), padded(predicted.grad, columns), share

    arguments = {"values": values, "old_values": old, "returns": returns, "mask": mask.tolist(), "clip": clip}
    arguments |= {"aggregation": aggregation, "constant": 20}
    return Case(f"value {aggregation} {clip}", "verl_value_loss", arguments, ours)


def estimated_kl(estimator):
    columns, _ = draw(3, spread=9.0)
    log_probs, reference = columns["log_probs"], columns["ref_log_probs"]

    def ours():
        tokens = torch.tensor(log_probs, dtype=torch.float64).requires_grad_()
        kl = token_kl(estimator, tokens, torch.tensor(reference, dtype=torch.float64))
        kl.sum().backward()
        return kl.detach(), tokens.grad

    return Case(
        f"kl {estimator}",
        "verl_kl",
        {"estimator": estimator, "log_probs": log_probs, "ref_log_probs": reference},
        ours,
    )


def truncated(cap):
    columns, mask = draw(5, spread=1.0)
    old, sampled = (packed(columns[name], columns) for name in ("old_log_probs", "sampled_log_probs"))
    arguments = {name: columns[name] for name in ("old_log_probs", "sampled_log_probs")}
    return Case(
        f"importance weights {cap}",
        "verl_importance_weights",
        {**arguments, "mask": mask.tolist(), "cap": cap},
        lambda: [padded(importance_weights(old, sampled, cap) * packed(mask.tolist(), columns), columns)],
        lambda answer: [answer],
    )


def entropy():
    logits = torch.randn(6, 11, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.zeros(6, dtype=torch.int64)
    return Case(
        "entropy",
        "verl_entropy",
        {"logits": logits.tolist()},
        lambda: [label_logprobs(logits, torch.eye(11).double(), labels, with_entropy=True)[1]],
        lambda answer: [answer],
    )


CASES = [
    *(outcome(*each, seed) for each in OUTCOMES for seed in (0, 1)),
    *(generalised({"discount": 0.9, "gae_lambda": lam}, 2, part) for lam in (1.0, 0.5) for part in (0, 1)),
    *(whitening(shift, 3) for shift in (True, False)),
    *(reward_with_kl(estimator, 4) for estimator in KL_ESTIMATORS),
    *map(policy_loss, range(120)),
    *(critic_loss(aggregation, 0.2, 6) for aggregation in AGGREGATIONS),
    *map(estimated_kl, KL_ESTIMATORS),
    *map(truncated, (1.2, 2.0)),
    overlong(),
    entropy(),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return ask([(case.function, case.arguments) for case in CASES], tmp_path_factory.mktemp("verl"))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_ours_equals_verls(answers, number):
    CASES[number].compare(answers[number])
