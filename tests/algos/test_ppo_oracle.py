"""PPO against its formulas, written out sequence by sequence in plain arithmetic, with no option at its default."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.rollouts import cut, ppo_actor, ppo_experiment, rollout
from support.tiny import flat, native

from hpcrl.algos.ppo import Critic
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Decision, Sequences
from hpcrl.recipes.ppo import PPOConfig
from hpcrl.workers.host import Work

TEMPERATURE = 0.8
STEPS = 2
OPTIMIZER = OptimizerConfig(lr=0.02, eps=1.0, weight_decay=0.0, grad_clip=0.0)
"""An epsilon of 1 keeps AdamW's updates nearly proportional to the gradient, so that its scale is compared too."""
SETTINGS = PPOConfig(
    minibatches=2,
    epochs=2,
    discount=0.9,
    gae_lambda=0.5,
    clip_low=0.15,
    clip_high=0.25,
    dual_clip=1.5,
    value_clip=0.1,
    kl=KLConfig(mode="reward", coef=0.3, estimator="k2", adaptive=True, target=0.05, horizon=40.0),
    reward_scale=1.5,
    reward_bias=0.2,
    reward_clip=2.0,
    cut="penalty",
    cut_penalty=0.7,
    whiten_advantages=True,
    value_norm=True,
    entropy_coef=0.03,
    aggregation="seq-mean-token-sum",
)


def batch_of(step):
    """A rollout whose policy, reference and values are far enough away that every bound is met."""
    made = rollout(6, seed=step, temperature=TEMPERATURE)
    draw = np.random.default_rng(step)

    def moved(key, spread):
        return [row + draw.normal(0, spread, len(row)).astype(np.float32) for row in made.rows(key)]

    rows = {"logprobs": moved("logprobs", 0.5), "values": moved("values", 0.3)}
    rows["rewards"] = [row + np.float32(step) for row in made.rows("rewards")]
    kept = made.select_keys([key for key in made.keys if key not in rows])
    return kept.merge(SequenceSample.from_rows(made.ids, rows))


def engine(head):
    return native(head, optimizer=OPTIMIZER, steps=STEPS)


def trained(kind, head, config):
    experiment = ppo_experiment(config, actor=OPTIMIZER, critic=OPTIMIZER, temperature=TEMPERATURE)
    role = kind(engine(head), experiment)
    call = MFC("train", "role", "train_step", (), ())
    outcomes = []
    for step in range(1, STEPS + 1):
        batch = batch_of(step)
        work = Work(step, "train", 0, batch, cut(batch.ids, config.minibatches))
        outcomes.append(role.train_step(work, call))
    return flat(role.engine), outcomes


# ── the formulas ──────────────────────────────────────────────────────────────────────────────────────────────────────
def log_ratio_kl(estimator, d):
    return {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[estimator]


def advantages_of(batch, config, kl_coef):
    """Per sequence: advantages and returns of its tokens; and the batch's mean over sequences of the mean KL."""
    advantages, returns, kls = [], [], []
    for i in range(len(batch.ids)):
        log_probs, reference, values = (
            batch.rows(key)[i].astype(float) for key in ("logprobs", "ref_logprobs", "values")
        )
        kl = [log_ratio_kl(config.kl.estimator, a - b) for a, b in zip(log_probs, reference, strict=True)]
        rewards = [-kl_coef * number for number in kl]
        score = (float(batch.rows("rewards")[i][0]) - config.reward_bias) * config.reward_scale
        score = min(max(score, -config.reward_clip), config.reward_clip)
        rewards[-1] += score if batch.rows("finished")[i][0] else score - config.cut_penalty
        found, later, next_value = [], 0.0, 0.0
        for reward, value in zip(rewards[::-1], values[::-1], strict=True):
            later = reward + config.discount * next_value - value + config.discount * config.gae_lambda * later
            next_value = value
            found.insert(0, later)
        advantages.append(np.array(found))
        returns.append(np.array(found) + values)
        kls.append(sum(kl) / len(kl))
    return advantages, returns, sum(kls) / len(kls)


def next_coef(coef, kl, config, samples):
    error = min(max(kl / config.kl.target - 1, -0.2), 0.2)
    return coef * (1 + error * samples / config.kl.horizon)


def one(batch, i):
    return Sequences.from_rows([batch.rows("prompts")[i]], [batch.rows("responses")[i]])


def weight(config, tokens, rows, batch):
    """What a token of a sequence counts in its mini-batch."""
    if config.aggregation == "token-mean":
        return 1 / sum(len(batch.rows("responses")[i]) for i in rows)
    return 1 / len(rows) / (tokens if config.aggregation == "seq-mean-token-mean" else 1)


def updates(model, config, batch, loss_of):
    """One optimizer step per mini-batch; the mean of their losses."""
    losses = []
    places = np.array_split(np.arange(len(batch.ids)), config.minibatches)
    for rows in places * config.epochs:
        model._training.clear()
        total = 0.0
        for i in rows:
            loss = loss_of(i, weight(config, len(batch.rows("responses")[i]), rows, batch))
            loss.backward()
            total += loss.item()
        model._training.follow(Decision("stepped", OPTIMIZER.lr), in_replay=False)
        losses.append(total)
    return sum(losses) / len(losses)


def actor_by_hand(config):
    model, coef, results = engine("vocabulary"), config.kl.coef, []
    met = {"clipped": 0, "dual": 0}
    for step in range(1, STEPS + 1):
        batch = batch_of(step)
        advantages, _, kl = advantages_of(batch, config, coef)
        if config.whiten_advantages:
            every = np.concatenate(advantages)
            advantages = [(row - every.mean()) / math.sqrt(every.var(ddof=1) + 1e-8) for row in advantages]
        seen = {"entropy": [], "ratio": []}

        def loss_of(i, share, batch=batch, advantages=advantages, seen=seen):
            said = model._model.forward(one(batch, i), TEMPERATURE, with_entropy=True)
            old = batch.rows("logprobs")[i]
            loss = 0.0
            for t, advantage in enumerate(advantages[i]):
                ratio = torch.exp(said.log_probs[t] - float(old[t]))
                bounded = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
                surrogate = min(ratio * advantage, bounded * advantage)
                met["clipped"] += bounded * advantage < ratio * advantage
                if config.dual_clip is not None and advantage < 0 and surrogate < config.dual_clip * advantage:
                    surrogate = torch.tensor(config.dual_clip * advantage)
                    met["dual"] += 1
                loss = loss - share * (surrogate + config.entropy_coef * said.entropy[t])
                seen["entropy"].append(said.entropy[t].item())
                seen["ratio"].append(ratio.item())
            return loss

        loss = updates(model, config, batch, loss_of)
        after = next_coef(coef, kl, config, len(batch.ids))
        means = {name: sum(numbers) / len(numbers) for name, numbers in seen.items()}
        results.append({"loss": loss, "kl": kl, "kl_coef": coef, "next": after, **means})
        coef = after
    assert all(met.values())
    return flat(model), results


def critic_by_hand(config):
    model, coef, results = engine("value"), config.kl.coef, []
    count = total = squares = 0.0
    met = {"clipped": 0, "bounded": 0}
    for step in range(1, STEPS + 1):
        batch = batch_of(step)
        _, returns, kl = advantages_of(batch, config, coef)
        mean, deviation = (
            (total / count, math.sqrt(max(squares / count - (total / count) ** 2, 0.01))) if count else (0, 1)
        )
        old = [(row.astype(float) - mean) / deviation for row in batch.rows("values")]
        every = np.concatenate(returns)
        count, total, squares = (
            0.999 * before + now
            for before, now in ((count, len(every)), (total, every.sum()), (squares, (every**2).sum()))
        )
        mean, deviation = total / count, math.sqrt(max(squares / count - (total / count) ** 2, 0.01))
        targets = [np.clip((row - mean) / deviation, -5, 5) for row in returns]

        def loss_of(i, share, batch=batch, old=old, targets=targets):
            values = model._model.forward(one(batch, i), 1.0, with_entropy=False).values
            loss = 0.0 * values.sum()
            for t, target in enumerate(targets[i]):
                held = min(max(values[t], old[i][t] - config.value_clip), old[i][t] + config.value_clip)
                free, bounded = (values[t] - target) ** 2, (held - target) ** 2
                met["clipped"] += bool(bounded > free)
                met["bounded"] += bool(held != values[t])
                loss = loss + share * max(free, torch.as_tensor(bounded)) / 2
            return loss

        loss = updates(model, config, batch, loss_of)
        after = next_coef(coef, kl, config, len(batch.ids))
        results.append({"loss": loss, "return": every.mean(), "next": after})
        coef = after
    assert all(met.values())
    return flat(model), results


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aggregation": "seq-mean-token-mean", "kl": replace(SETTINGS.kl, estimator="k3")},
        {"aggregation": "token-mean", "kl": replace(SETTINGS.kl, estimator="k1"), "whiten_advantages": False},
    ],
)
@pytest.mark.parametrize(
    ("kind", "head", "by_hand"), [(ppo_actor, "vocabulary", actor_by_hand), (Critic, "value", critic_by_hand)]
)
def test_two_steps_of_training_equal_the_formulas(kind, head, by_hand, changes):
    config = replace(SETTINGS, **changes)
    start = flat(engine(head)).clone()
    expected, results = by_hand(config)
    found, outcomes = trained(kind, head, config)
    for outcome, result in zip(outcomes, results, strict=True):
        means = {name: total / weight for name, (total, weight) in outcome.stats.items()}
        means["next"] = outcome.record["next_kl_coef"]
        for name, number in result.items():
            assert means[name] == pytest.approx(number, rel=1e-6), name
    moved, expected_move = found - start, expected - start
    assert float(expected_move.abs().max()) > 1e-3
    torch.testing.assert_close(moved, expected_move, rtol=1e-5, atol=1e-9)
