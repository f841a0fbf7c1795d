"""What a train_step gives its loss: each switch of a policy reaches it, with the rows and numbers that it is about."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.rollouts import ppo_actor, ppo_experiment, rollout
from support.tiny import native

from hpcrl.algos.estimates import responses
from hpcrl.algos.ppo import Critic
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes.ppo import PPOConfig
from hpcrl.workers.host import Work

BATCH = rollout(8)
ONCE = PPOConfig(minibatches=1, epochs=1, clip_low=0.999, clip_high=1e3, dual_clip=None, whiten_advantages=False)
TWICE = replace(ONCE, epochs=2)
HEADS = {ppo_actor: "vocabulary", Critic: "value"}
STILL = OptimizerConfig(lr=1e-12)
LONGEST = 20
APART = 0.25


def means(config, kind=ppo_actor, batch=BATCH):
    """The statistics of updates that are all made from the same parameters."""
    made = ppo_experiment(config, actor=STILL, critic=STILL)
    trained = kind(native(HEADS[kind], torch.float64, optimizer=STILL, steps=3), made)
    outcome = trained.train_step(Work(1, "train", 0, batch, (batch.ids,)), MFC("train", "actor", "train_step", (), ()))
    return {name: total / weight for name, (total, weight) in outcome.stats.items()}


def with_recomputed(batch=BATCH):
    """Old log-probabilities that are not the rollout's."""
    rows = {"old_logprobs": [row - np.float32(APART) for row in batch.rows("logprobs")]}
    return batch.merge(SequenceSample.from_rows(batch.ids, rows))


@pytest.mark.parametrize("kind", HEADS)
def test_the_normalised_sum_is_over_the_most_tokens_of_a_response(kind):
    plain, normed = (
        means(replace(ONCE, aggregation=name), kind)["loss"]
        for name in ("seq-mean-token-sum", "seq-mean-token-sum-norm")
    )
    assert plain != 0 and normed == pytest.approx(plain / LONGEST, rel=1e-9)


@pytest.mark.parametrize("kind", HEADS)
def test_each_aggregation_gives_another_loss(kind):
    names = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum")
    assert len({round(means(replace(ONCE, aggregation=name), kind)["loss"], 9) for name in names}) == len(names)


def test_a_ratio_is_over_the_log_probabilities_that_were_computed_again():
    sampled, again = means(TWICE), means(replace(TWICE, old_logprobs="recomputed"), batch=with_recomputed())
    assert sampled["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert again["ratio"] == pytest.approx(math.exp(APART), rel=1e-5)


def test_importance_weights_are_of_the_recomputed_over_the_rollouts_probabilities():
    plain = means(replace(TWICE, old_logprobs="recomputed"), batch=with_recomputed())["loss"]
    for cap, weight in ((2.0, math.exp(-APART)), (0.5, 0.5)):
        capped = replace(TWICE, old_logprobs="recomputed", importance_cap=cap)
        assert means(capped, batch=with_recomputed())["loss"] == pytest.approx(plain * weight, rel=1e-5)


def test_a_penalty_in_the_loss_is_of_the_policy_over_the_reference():
    penalty = KLConfig(mode="loss", coef=0.3, estimator="k1")
    dearer = means(replace(TWICE, kl=penalty))["loss"] - means(TWICE)["loss"]
    policy = native(optimizer=None).forward(responses(BATCH), 0.8)
    assert dearer == pytest.approx(0.3 * float(np.mean(policy - BATCH.data["ref_logprobs"])), rel=1e-4)


def test_the_kl_of_a_reward_is_of_the_recomputed_log_probabilities():
    kept = replace(TWICE, kl=KLConfig(mode="reward", coef=0.3, estimator="k1"))
    sampled, again = means(kept), means(replace(kept, old_logprobs="recomputed"), batch=with_recomputed())
    assert again["kl"] == pytest.approx(sampled["kl"] - APART, rel=1e-5)
