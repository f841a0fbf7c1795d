"""DPO, IPO, cDPO and reward models against their formulas, pair by pair, for any split into micro-batches and ranks."""

import math

import numpy as np
import pytest
import torch
from support.pairs import dpo_experiment, pairs, reward_model_experiment, with_reference
from support.pool import everyone, gloo_pool
from support.rollouts import cut, trained_by
from support.tiny import ALONE, flat, native

from hpcrl.algos import dpo, reward_model
from hpcrl.config.model import OptimizerConfig
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Decision, Sequences
from hpcrl.workers.host import Work

OPTIMIZER = OptimizerConfig(lr=0.02, eps=1.0, weight_decay=0.0, grad_clip=0.0)
"""An epsilon of 1 keeps AdamW's updates nearly proportional to the gradient, so that its scale is compared too."""
COUNTS = [2, 1, 3, 1, 2, 1]
BATCH = with_reference(pairs(COUNTS))
CALL = MFC("train", "actor", "train_step", ())
LOSSES = [{}, {"label_smoothing": 0.2, "beta": 0.7}, {"loss": "ipo", "beta": 0.3}]
SPLITS = [(range(6), ()), ((0, 3, 5), (4, 2, 1)), ((2,), (5, 4, 3, 1, 0))]


def actor(group=ALONE, micro_batch_tokens=1000, **changes):
    engine = native(group=group, micro_batch_tokens=micro_batch_tokens, optimizer=OPTIMIZER)
    return dpo.Actor(engine, dpo_experiment(OPTIMIZER, **changes))


def scorer(group=ALONE, micro_batch_tokens=1000, centring=0.1):
    engine = native("reward", group=group, micro_batch_tokens=micro_batch_tokens, optimizer=OPTIMIZER)
    return reward_model.RewardModel(engine, reward_model_experiment(OPTIMIZER, centring))


def stepped(role, batch=BATCH):
    outcome = trained_by(role, Work(1, "train", 0, batch, cut(BATCH.ids, 1)), CALL)
    return dict(outcome.stats), flat(role.engine).clone(), outcome.record["digest"]


# ── the formulas, pair by pair ────────────────────────────────────────────────────────────────────────────────────────
def each_pair(batch):
    """(prompt, chosen, rejected, margin, reference's two numbers) of every pair."""
    for i in range(len(batch.ids)):
        rows = zip(
            batch.parts("chosen")[i],
            batch.parts("rejected")[i],
            batch.rows("margins")[i].tolist(),
            batch.rows("ref_chosen")[i].tolist(),
            batch.rows("ref_rejected")[i].tolist(),
            strict=True,
        )
        for row in rows:
            yield batch.rows("prompts")[i], *row


def said(engine, prompt, answer, labelled="response"):
    sequence = Sequences.from_rows([prompt], [answer], labelled=labelled)
    return engine._model.forward(sequence, 1.0, with_entropy=False)


def log_sigmoid(number):
    return -torch.log1p(torch.exp(-number))


def dpo_by_hand(config):
    engine, losses, wins = native(optimizer=OPTIMIZER), [], []
    found = list(each_pair(BATCH))
    for prompt, chosen, rejected, _, ref_chosen, ref_rejected in found:
        ratio_w = said(engine, prompt, chosen).log_probs.sum() - ref_chosen
        ratio_l = said(engine, prompt, rejected).log_probs.sum() - ref_rejected
        delta = ratio_w - ratio_l
        if config.loss == "ipo":
            loss = (ratio_w / len(chosen) - ratio_l / len(rejected) - 1 / (2 * config.beta)) ** 2
        else:
            smooth = config.label_smoothing
            loss = -(1 - smooth) * log_sigmoid(config.beta * delta) - smooth * log_sigmoid(-config.beta * delta)
        (loss / len(found)).backward()
        losses.append(loss.item())
        wins.append((delta.item() > 0, config.beta * delta.item()))
    engine._training.follow(Decision("stepped", OPTIMIZER.lr), in_replay=False)
    accuracy, margin = np.mean(wins, axis=0)
    return {"loss": np.mean(losses), "accuracy": accuracy, "margin": margin}, flat(engine)


def rm_by_hand(centring):
    engine, losses, scores = native("reward", optimizer=OPTIMIZER), [], []
    found = list(each_pair(BATCH))
    for prompt, chosen, rejected, margin, _, _ in found:
        first, second = (said(engine, prompt, side, "after").values[0] for side in (chosen, rejected))
        loss = -log_sigmoid(first - second - margin) + centring * (first + second) ** 2
        (loss / len(found)).backward()
        losses.append(loss.item())
        scores.append((first.item(), second.item()))
    engine._training.follow(Decision("stepped", OPTIMIZER.lr), in_replay=False)
    chosen, rejected = np.mean(scores, axis=0)
    accuracy = np.mean([one > other for one, other in scores])
    means = {"chosen": chosen, "rejected": rejected, "margin": chosen - rejected, "accuracy": accuracy}
    return {"loss": np.mean(losses), **means}, flat(engine)


def check_equal(found, expected):
    for name, number in expected[0].items():
        total, weight = found[0][name]
        assert total / weight == pytest.approx(number, rel=1e-12, abs=1e-12), name
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("changes", LOSSES)
@pytest.mark.parametrize("micro_batch_tokens", [1, 60, 1000])
def test_a_step_of_dpo_equals_the_formulas_for_any_micro_batches(changes, micro_batch_tokens):
    start = flat(native()).clone()
    expected = dpo_by_hand(dpo_experiment(**changes).dpo)
    assert float((expected[1] - start).abs().max()) > 1e-5
    check_equal(stepped(actor(micro_batch_tokens=micro_batch_tokens, **changes)), expected)


@pytest.mark.parametrize("centring", [0.0, 0.1])
@pytest.mark.parametrize("micro_batch_tokens", [1, 60, 1000])
def test_a_step_of_a_reward_model_equals_the_formulas_for_any_micro_batches(centring, micro_batch_tokens):
    start = flat(native("reward")).clone()
    expected = rm_by_hand(centring)
    assert float((expected[1] - start).abs().max()) > 1e-5
    check_equal(stepped(scorer(micro_batch_tokens=micro_batch_tokens, centring=centring)), expected)


MAKERS = {"actor": actor, "scorer": scorer}


def on_two_ranks(context, role, split):
    batch = BATCH.select([BATCH.ids[i] for i in split[context.rank]])
    return stepped(MAKERS[role](everyone(context), 60), batch)


@pytest.mark.parametrize("role", MAKERS)
def test_two_ranks_train_on_pairs_as_one(role):
    expected = stepped(MAKERS[role]())
    with gloo_pool(2) as pool:
        for split in SPLITS:
            first, second = pool.run(on_two_ranks, role, split)
            assert first[0] == second[0] and first[2] == second[2]
            for name, (total, weight) in expected[0].items():
                assert first[0][name] == (pytest.approx(total, rel=1e-12, abs=1e-12), weight), name
            torch.testing.assert_close(first[1], expected[1], rtol=0, atol=1e-12)


def test_a_reference_gives_each_answers_log_probability():
    engine = native(optimizer=None)
    made = dpo.Reference(engine, dpo_experiment()).inference(Work(1, "ref", 0, BATCH), CALL).sample
    for i, prompt in enumerate(BATCH.rows("prompts")):
        for key, side in (("ref_chosen", "chosen"), ("ref_rejected", "rejected")):
            of_row = [float(said(engine, prompt, answer).log_probs.sum()) for answer in BATCH.parts(side)[i]]
            assert made.rows(key)[i] == pytest.approx(of_row, rel=1e-5)


def test_evaluations_say_of_held_out_pairs_what_training_would():
    role = actor()
    found = role.evaluate(Work(1, "eval", 0, BATCH), CALL)
    trained = stepped(role)[0]
    for name in dpo_experiment_metrics():
        assert found.stats[name] == pytest.approx(trained[name], rel=1e-5), name
    assert found.sample.length("chosen_rewards") == tuple(COUNTS)
    role = scorer()
    found = role.evaluate(Work(1, "eval", 0, BATCH), CALL)
    trained = stepped(role)[0]
    for name in ("accuracy", "margin", "chosen", "rejected"):
        assert found.stats[name] == pytest.approx(trained[name], rel=1e-5), name
    total, weight = found.stats["loss"]
    assert total / weight == pytest.approx(trained["loss"][0], rel=1e-5)


def dpo_experiment_metrics():
    return ("accuracy", "margin", "chosen_reward", "rejected_reward", "chosen_logp", "rejected_logp")


def test_pairs_are_learnt():
    role = scorer(centring=0.0)
    for step in range(1, 9):
        trained_by(role, Work(step, "train", 0, BATCH, cut(BATCH.ids, 1)), CALL)
    before = native("reward")
    assert math.isfinite(float(flat(before).sum()))
    total, weight = role.evaluate(Work(9, "eval", 0, BATCH), CALL).stats["loss"]
    first, _ = scorer(centring=0.0).evaluate(Work(0, "eval", 0, BATCH), CALL).stats["loss"]
    assert total < 0.9 * first and weight == sum(COUNTS)
