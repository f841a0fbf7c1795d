"""PPO on an engine: what is computed from a rollout, what a step changes, and that a record replays it."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.rollouts import cut, ppo_actor, ppo_experiment, rollout, tracking_kl, trained_by
from support.tiny import ALONE, native

from hpcrl.algos.estimates import estimate, responses, shaped
from hpcrl.algos.functional.totals import alone
from hpcrl.algos.policy import Reference
from hpcrl.algos.ppo import Critic, generalised, value_statistics
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.data.batch import Batch
from hpcrl.data.minibatches import minibatches_of_all_passes
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.schedule import learning_rate
from hpcrl.recipes.ppo import PPOConfig
from hpcrl.workers.host import Work

CALL = MFC("actor_train", "actor", "train_step", (), ())
BATCH = rollout(8)
PPO = PPOConfig(minibatches=2, epochs=2, kl=tracking_kl(), value_norm=True, entropy_coef=0.01, gae_lambda=0.95)
HEADS = {ppo_actor: "vocabulary", Critic: "value"}


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(2) as ranks:
        yield ranks


def role(kind, ppo=PPO, steps=10, dtype=torch.float64, group=ALONE, **experiment):
    made = ppo_experiment(ppo, **experiment)
    optimizer = made.actor.optimizer if kind is ppo_actor else made.critic.optimizer
    return kind(native(HEADS[kind], dtype, group, optimizer=optimizer, steps=steps), made)


def step(trained, number=1, record=None, batch=BATCH, minibatches=2, ids=None):
    work = Work(number, "train", 0, batch, cut(ids or batch.ids, minibatches), record)
    return trained_by(trained, work, CALL)


def replace(batch, **rows):
    kept = batch.select_keys([key for key in batch.keys if key not in rows])
    return kept.merge(SequenceSample.from_rows(batch.ids, rows))


# ── rewards and advantages ────────────────────────────────────────────────────────────────────────────────────────────
def tokens(*numbers):
    return [np.array(numbers, np.float32)]


ONE = SequenceSample.from_rows(
    ["a"],
    {
        "prompts": [np.array([1], np.int32)],
        "responses": [np.array([1, 2, 3], np.int32)],
        "finished": [np.array([True])],
        "logprobs": tokens(-1.0, -2.0, -0.5),
        "ref_logprobs": tokens(-1.5, -1.0, -0.5),
        "rewards": tokens(4.0),
        "values": tokens(0.0, 0.0, 0.0),
    },
)


def estimated(batch, ppo, kl_coef=0.1, total=alone):
    work = Work(1, "train", 0, batch, (batch.ids,))
    return estimate(work, ppo_experiment(ppo), kl_coef, total)


def test_a_policy_that_likes_its_tokens_more_than_the_reference_pays_for_it():
    """Catches a KL penalty of the wrong sign. With discount and lambda 1, returns are sums of future rewards."""
    config = PPOConfig(kl=KLConfig(mode="reward", coef=0.1))
    made = estimated(ONE, config)
    rewards = [-0.1 * 0.5, 0.1 * 1.0, 4.0]
    np.testing.assert_allclose(made.rewards_N, rewards, rtol=1e-6)
    np.testing.assert_allclose(generalised(made, config)[1], np.cumsum(rewards[::-1])[::-1], rtol=1e-6)
    assert made.mean_kl == pytest.approx(-0.5 / 3)
    assert (made.samples, made.drawn) == (1, 1)


@pytest.mark.parametrize("kl", [KLConfig(), KLConfig(mode="loss", coef=0.0)])
def test_without_a_reference_rewards_are_the_scores_alone(kl):
    free = ONE.select_keys([key for key in ONE.data if key != "ref_logprobs"])
    made = estimated(free, PPOConfig(kl=kl))
    assert made.rewards_N.tolist() == [0.0, 0.0, 4.0]
    assert made.stats() == {"counted": (1.0, 1.0)}


def test_a_penalty_in_the_loss_leaves_rewards_alone():
    made = estimated(ONE, PPOConfig(kl=KLConfig(mode="loss", coef=0.1, estimator="k1")))
    assert made.rewards_N.tolist() == [0.0, 0.0, 4.0]
    assert made.mean_kl == pytest.approx(-0.5 / 3)


def shaped_by(scores, finished=None, lengths=None, **settings):
    scores = torch.tensor(scores, dtype=torch.float64)
    ended = torch.ones(len(scores), dtype=torch.bool) if finished is None else torch.tensor(finished)
    return shaped(ppo_experiment(PPOConfig(**settings)), scores, ended, torch.tensor(lengths or [1] * len(scores)))


def test_scores_are_shifted_scaled_and_bounded():
    settings = {"reward_bias": 1.0, "reward_scale": 2.0}
    assert shaped_by([0.0, 2.0, 9.0], reward_clip=3.0, **settings).tolist() == [-2.0, 2.0, 3.0]
    assert shaped_by([0.0, 2.0, 9.0], **settings).tolist() == [-2.0, 2.0, 16.0]


def test_a_response_that_was_cut_keeps_its_score_or_pays_the_penalty():
    """Had it no score, never ending would beat being wrong wherever scores are negative."""
    assert shaped_by([-1.0, -1.0], [True, False]).tolist() == [-1.0, -1.0]
    assert shaped_by([5.0, 5.0], [True, False], cut="penalty", cut_penalty=2.0).tolist() == [5.0, 3.0]


def test_the_end_of_the_room_for_a_response_costs_in_proportion():
    """Of 20 tokens."""
    lengths = [1, 16, 17, 18, 20]
    costs = shaped_by([0.0] * 5, lengths=lengths, overlong_buffer=4, overlong_penalty=2.0)
    assert costs.tolist() == [0.0, 0.0, -0.5, -1.0, -2.0]


def test_a_cut_response_counts_nowhere_if_so_set_nor_does_one_without_a_score():
    scores = [row if i != 1 else np.float32([np.nan]) for i, row in enumerate(BATCH.rows("rewards"))]
    made = estimated(replace(BATCH, rewards=scores), PPOConfig(cut="mask"))
    finished = [bool(row[0]) for row in BATCH.rows("finished")]
    assert finished[1] and not all(finished)
    assert made.sequences.counted.tolist() == [i != 1 and ended for i, ended in enumerate(finished)]
    assert made.samples == sum(made.sequences.counted) < made.drawn == 8
    assert not made.rewards_N[~torch.from_numpy(made.sequences.counting)].any()


def test_the_value_after_a_cut_response_is_the_reward_of_its_last_token():
    config = PPOConfig(cut="bootstrap", discount=0.5, gae_lambda=0.5)
    after = [np.float32([2.0])] * 8
    made = estimated(replace(BATCH, values_after=after), config)
    plain = estimated(BATCH, dataclasses.replace(config, cut="score"))
    added = torch.where(made.double("finished").bool(), 0.0, 1.0)
    ends = made.cu_labels[1:] - 1
    torch.testing.assert_close((made.rewards_N - plain.rewards_N)[ends], added.double())


def test_scores_of_tokens_are_placed_on_them_and_the_rest_is_the_last_ones():
    placed = replace(ONE, token_rewards=tokens(1.0, 0.0, 3.0))
    config = PPOConfig(reward_scale=2.0, reward_bias=0.5, cut="penalty")
    assert estimated(placed, config).rewards_N.tolist() == [2.0, 0.0, 5.0]
    assert estimated(replace(placed, token_rewards=tokens()), config).rewards_N.tolist() == [0.0, 0.0, 7.0]


def test_actor_and_critic_estimate_alike_whatever_their_model():
    left, right = (estimated(BATCH, PPO, 0.1, role(kind).engine.total) for kind in (ppo_actor, Critic))
    assert torch.equal(left.rewards_N, right.rewards_N)


def test_explained_variance_is_one_for_perfect_values_and_zero_for_a_constant():
    returns = torch.tensor([1.0, 2.0, 4.0])
    assert value_statistics(returns - 3.0, returns, alone)["explained_variance"] == (1.0, 1.0)
    assert value_statistics(torch.zeros(3), returns, alone)["explained_variance"][0] == pytest.approx(0.0)
    assert "explained_variance" not in value_statistics(returns, torch.ones(3), alone)


# ── one step ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_training_uses_the_temperature_of_the_rollout():
    """Catches a temperature that is applied in generation only: the first ratio would not be 1."""
    one_pass = dataclasses.replace(PPO, epochs=1)
    same, other = (step(role(ppo_actor, one_pass, temperature=t), minibatches=1).stats for t in (0.8, 1.0))
    assert same["ratio"][0] / same["ratio"][1] == pytest.approx(1.0, abs=1e-6)
    assert same["approx_kl"][0] == pytest.approx(0.0, abs=1e-6)
    assert other["approx_kl"][0] > 1.0


def test_the_reference_uses_the_temperature_of_the_rollout():
    reference = Reference(native(optimizer=None), ppo_experiment(PPO))
    batch = BATCH.select_keys(["prompts", "responses"])
    made = reference.inference(Work(0, "ref_inf", 0, batch), CALL).sample
    np.testing.assert_allclose(made.data["ref_logprobs"], BATCH.data["logprobs"], rtol=1e-6, atol=1e-6)
    assert made.length("ref_logprobs") == BATCH.length("responses")


def test_better_than_expected_tokens_become_likelier():
    batch = replace(BATCH, rewards=[np.float32([3.0 if i < 4 else -3.0]) for i in range(8)])
    plain = PPOConfig(minibatches=1, kl=KLConfig())
    actor = role(ppo_actor, plain)
    before = actor.engine.forward(responses(batch), 0.8)
    for number in range(1, 6):
        step(actor, number, batch=batch, minibatches=1)
    change = actor.engine.forward(responses(batch), 0.8) - before
    good = sum(batch.length("responses")[:4])
    assert change[:good].mean() > 0 > change[good:].mean()


def test_the_critic_learns_the_returns():
    critic = role(Critic, dataclasses.replace(PPO, value_clip=10.0))
    losses = [step(critic, number).stats["loss"] for number in range(1, 31)]
    assert losses[-1][0] / losses[-1][1] < 0.3 * losses[0][0] / losses[0][1]


@pytest.mark.parametrize("kind", [ppo_actor, Critic])
def test_rates_follow_the_schedule_over_the_updates_of_the_whole_run(kind):
    """Catches a schedule whose length counts epochs twice, or mini-batches not at all."""
    optimizer = OptimizerConfig(lr=0.01, schedule="cosine", warmup_steps=3)
    trained = role(kind, steps=3, actor=optimizer, critic=optimizer)
    rates = [rate for number in (1, 2, 3) for rate in step(trained, number).record["lr"]]
    assert rates == [learning_rate(optimizer, update, 3 * 2 * 2) for update in range(12)]
    assert rates[-1] < 0.05 * optimizer.lr


def test_an_early_stop_leaves_parameters_momentum_and_counts_alone():
    """Catches a stop that multiplies the loss by zero and steps all the same."""
    eager = {"actor": OptimizerConfig(lr=0.5, weight_decay=0.1)}
    stopping = role(ppo_actor, dataclasses.replace(PPO, early_stop_kl=1e-4), **eager)
    outcome = step(stopping)
    assert outcome.record["outcomes"] == ["stepped", "refused"]
    unlimited = role(ppo_actor, dataclasses.replace(PPO, epochs=1), **eager)
    only_first = step(unlimited, minibatches=2, record={**outcome.record, "kl_coef": 0.1, "next_kl_coef": 1})
    assert outcome.record["digest"] == only_first.record["digest"]


@pytest.mark.parametrize("limit", [{"early_stop_kl": 1e-4}, {"early_stop_ratio": 1.0001}])
def test_a_rollout_that_is_already_too_far_away_trains_nothing(limit):
    away = replace(BATCH, logprobs=[row - 1.0 for row in BATCH.rows("logprobs")])
    actor = role(ppo_actor, dataclasses.replace(PPO, **limit))
    digest = actor.engine.digest()
    outcome = step(actor, batch=away)
    assert outcome.record["outcomes"] == ["refused"]
    assert outcome.record["digest"] == digest
    assert "grad_norm" not in outcome.stats
    assert outcome.stats["approx_kl"][1] > 0


# ── the KL coefficient ────────────────────────────────────────────────────────────────────────────────────────────────
def drifted(distance):
    return replace(BATCH, ref_logprobs=[row - np.float32(distance) for row in BATCH.rows("logprobs")])


@pytest.mark.parametrize(("distance", "expected"), [(1.0, 0.1 * (1 + 0.2 * 8 / 100)), (0.0, 0.1 * (1 - 0.2 * 8 / 100))])
@pytest.mark.parametrize("kind", [ppo_actor, Critic])
def test_the_adaptive_coefficient_moves_once_a_step_towards_the_target(kind, distance, expected):
    """Catches a controller fed with the reward -c·KL, with sums, or once per mini-batch."""
    trained = role(kind)
    outcome = step(trained, batch=drifted(distance))
    assert outcome.record["kl_coef"] == 0.1
    assert outcome.record["next_kl_coef"] == pytest.approx(expected, rel=1e-12)
    assert step(trained, 2).record["kl_coef"] == outcome.record["next_kl_coef"]


def test_an_adaptive_coefficient_goes_on_from_its_own_value_under_settings_with_another_first_one():
    actor = role(ppo_actor)
    moved = step(actor, batch=drifted(1.0)).record["next_kl_coef"]
    later = dataclasses.replace(tracking_kl(), coef=0.9)
    assert actor._kl_coef.begin(later, None) == moved
    assert actor._kl_coef.begin(dataclasses.replace(later, adaptive=False), None) == 0.9


def test_a_fixed_coefficient_stays():
    actor = role(ppo_actor, dataclasses.replace(PPO, kl=tracking_kl(adaptive=False)))
    assert step(actor, batch=drifted(1.0)).record["next_kl_coef"] == 0.1


# ── ranks, checkpoints, replay ────────────────────────────────────────────────────────────────────────────────────────
def on_two_ranks(context, kind, parts):
    trained = role(kind, group=everyone(context))
    outcomes = [step(trained, n, batch=BATCH.select(parts[context.rank]), ids=BATCH.ids) for n in (1, 2, 3)]
    return [(dict(outcome.stats), outcome.record) for outcome in outcomes], trained.state()


@pytest.mark.parametrize("parts", [(BATCH.ids[:3], BATCH.ids[3:]), (BATCH.ids[1::2], BATCH.ids[::2]), ((), BATCH.ids)])
@pytest.mark.parametrize("kind", [ppo_actor, Critic])
def test_two_ranks_train_as_one_in_float64(pool, kind, parts):
    trained = role(kind)
    expected = [step(trained, number) for number in (1, 2, 3)]
    first, second = pool.run(on_two_ranks, kind, parts)
    assert json.dumps(first[0]) == json.dumps(second[0])
    for (stats, record), outcome in zip(first[0], expected, strict=True):
        assert stats.keys() == outcome.stats.keys()
        for name, (total, weight) in outcome.stats.items():
            assert stats[name] == (pytest.approx(total, rel=1e-9, abs=1e-11), weight), name
        assert record["lr"] == outcome.record["lr"]
        assert record["next_kl_coef"] == pytest.approx(outcome.record["next_kl_coef"], rel=1e-12)
    assert first[1]["kl_coef"] == pytest.approx(trained.state()["kl_coef"], rel=1e-12)


def whole_batch_everywhere(context):
    step(role(ppo_actor, group=everyone(context)))


def test_samples_that_two_ranks_hold_are_refused(pool):
    with pytest.raises(AssertionError, match="the ranks hold 8 samples of a mini-batch of 4"):
        pool.run(whole_batch_everywhere)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [ppo_actor, Critic])
def test_a_checkpoint_in_the_middle_changes_no_bit(kind, dtype):
    through, resumed = role(kind, dtype=dtype), role(kind, dtype=dtype)
    step(through)
    resumed.engine.load([through.engine.snapshot()])
    resumed.load_state(json.loads(json.dumps(through.state())))
    outcomes = [step(trained, 2) for trained in (through, resumed)]
    assert outcomes[0].record == outcomes[1].record
    assert outcomes[0].stats == outcomes[1].stats
    assert through.state() == resumed.state()


@pytest.mark.parametrize("early_stop", [{}, {"early_stop_kl": 1e-4}])
@pytest.mark.parametrize("kind", [ppo_actor, Critic])
def test_a_replay_follows_the_record_bit_for_bit_and_decides_nothing_anew(kind, early_stop):
    limited = dataclasses.replace(PPO, **early_stop)
    first = role(kind, limited, dtype=torch.float32)
    other = dataclasses.replace(PPO, kl=KLConfig(mode="reward", coef=9.0), early_stop_kl=None)
    faster = {"actor": OptimizerConfig(lr=3.0), "critic": OptimizerConfig(lr=3.0)}
    replayed = role(kind, other, steps=99, dtype=torch.float32, **faster)
    for number in (1, 2, 3):
        outcome = step(first, number)
        again = step(replayed, number, record=json.loads(json.dumps(outcome.record)))
        assert again.record == outcome.record
        assert again.stats == outcome.stats
        assert replayed.state() == first.state()


def test_values_are_in_the_units_of_the_rewards():
    critic = role(Critic)
    for number in (1, 2, 3):
        step(critic, number)
    batch = BATCH.select_keys(["prompts", "responses"])
    made = critic.inference(Work(3, "critic_inf", 0, batch), CALL)
    raw = critic.engine.forward(estimated(BATCH, PPO).sequences)
    moments = critic.state()["normaliser"]
    mean = moments["sum"] / moments["count"]
    deviation = (moments["square_sum"] / moments["count"] - mean**2) ** 0.5
    np.testing.assert_allclose(made.sample.data["values"], raw * deviation + mean, rtol=1e-5, atol=1e-6)
    assert made.sample.length("values") == BATCH.length("responses")


def test_a_step_without_a_finite_gradient_trains_nothing_and_has_no_means():
    broken = replace(BATCH, rewards=[np.float32([np.inf])] * 8)
    actor = role(ppo_actor)
    digest = actor.engine.digest()
    outcome = step(actor, batch=broken)
    assert set(outcome.record["outcomes"]) == {"skipped"} and outcome.record["digest"] == digest
    assert outcome.stats.keys() == {"skipped", "kl", "kl_coef", "counted"}
    assert outcome.stats["skipped"] == (len(outcome.record["outcomes"]), 1.0)
    assert step(actor, batch=broken, record=outcome.record).record == outcome.record


def test_the_value_after_a_response_is_that_before_whatever_token_would_follow():
    critic, plain = role(Critic), BATCH.select_keys(["prompts", "responses"])
    both = MFC("critic_inf", "critic", "inference", (), ("values", "values_after"))
    made = critic.inference(Work(1, "critic_inf", 0, plain), both).sample
    longer = replace(plain, responses=[np.append(row, np.int32(3)) for row in plain.rows("responses")])
    expected = critic.inference(Work(1, "critic_inf", 0, longer), CALL).sample.rows("values")
    for values, after, row in zip(made.rows("values"), made.rows("values_after"), expected, strict=True):
        np.testing.assert_allclose(np.append(values, after), row, rtol=1e-6)


def test_the_first_steps_may_train_the_critic_alone():
    waiting = dataclasses.replace(PPO, critic_warmup=2)
    actor, critic = role(ppo_actor, waiting), role(Critic, waiting)
    start = actor.engine.digest()
    for number in (1, 2):
        outcome = step(actor, number)
        assert outcome.record["outcomes"] == [] and actor.engine.digest() == start
        assert outcome.record["next_kl_coef"] != outcome.record["kl_coef"]
        assert step(actor, number, record=outcome.record).record == outcome.record
        assert set(step(critic, number).record["outcomes"]) == {"stepped"}
    assert step(actor, 3).record["outcomes"] == ["stepped"] * 4


def test_passes_that_are_reshuffled_have_minibatches_of_their_own_and_are_replayed():
    shuffled = dataclasses.replace(PPO, reshuffle=True)
    plain, first, again = role(ppo_actor), role(ppo_actor, shuffled), role(ppo_actor, shuffled)
    batch = Batch(rows=8, minibatches=2, passes=2, reshuffled=True)
    passes = minibatches_of_all_passes(batch, cut(BATCH.ids, 2), first.experiment.seed, 1)
    work = Work(1, "train", 0, BATCH, passes)
    outcome = trained_by(first, work, CALL)
    assert outcome.record["digest"] != step(plain).record["digest"]
    assert trained_by(again, dataclasses.replace(work, record=outcome.record), CALL).record == outcome.record


def test_log_probabilities_that_are_computed_again_are_those_of_the_models_own_pass():
    actor = role(ppo_actor, dataclasses.replace(PPO, old_logprobs="recomputed"))
    made = actor.inference(Work(1, "actor_inf", 0, BATCH.select_keys(["prompts", "responses"])), CALL).sample
    np.testing.assert_array_equal(made.data["old_logprobs"], actor.engine.forward(responses(BATCH), 0.8))
    outcome = step(actor, batch=BATCH.merge(made))
    assert outcome.record["outcomes"] == ["stepped"] * 4


def test_no_entropy_is_computed_without_its_weight():
    outcome = step(role(ppo_actor, dataclasses.replace(PPO, entropy_coef=0.0)))
    assert "entropy" not in outcome.stats and "entropy" in step(role(ppo_actor)).stats
