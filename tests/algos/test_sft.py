"""Supervised fine-tuning on an engine."""

import json

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.rollouts import cut, sft_experiment, trained_by
from support.tiny import ALONE, native, random_rows

from hpcrl.algos.sft import SFTActor, answers
from hpcrl.config.model import OptimizerConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.schedule import learning_rate
from hpcrl.workers.host import Work

CALL = MFC("actor_train", "actor", "train_step", (), ())
LINEAR = OptimizerConfig(lr=0.02, schedule="linear", warmup_steps=2)


def batch_of(count, seed=0):
    prompts, responses = random_rows(count, seed)
    return SequenceSample.from_rows([f"{i}@0" for i in range(count)], {"prompts": prompts, "answers": responses})


BATCH = batch_of(7)


def student(dtype=torch.float64, group=ALONE, steps=40, optimizer=LINEAR):
    return SFTActor(native(dtype=dtype, group=group, optimizer=optimizer, steps=steps), sft_experiment(optimizer))


def step(trained, number=1, record=None, batch=BATCH):
    return trained_by(trained, Work(number, "actor_train", 0, batch, cut(BATCH.ids, 1), record), CALL)


def test_the_loss_is_the_mean_over_all_answer_tokens():
    trained = student()
    log_probs = trained.engine.forward(answers(BATCH))
    outcome = step(trained)
    assert outcome.stats["loss"][0] == pytest.approx(-float(np.mean(log_probs, dtype=np.float64)), rel=1e-6)


def test_it_learns_the_answers_and_evaluation_sees_it():
    trained = student()
    before = trained.evaluate(Work(0, "eval", 0, BATCH), CALL).stats["loss"]
    for number in range(1, 41):
        step(trained, number)
    after = trained.evaluate(Work(40, "eval", 0, BATCH), CALL).stats["loss"]
    made = trained.evaluate(Work(40, "eval", 0, BATCH), CALL).sample
    assert made.length("losses") == BATCH.length("answers")
    assert float(made.data["losses"].sum(dtype=np.float64)) == pytest.approx(after[0])
    assert after[1] == before[1] == sum(BATCH.length("answers"))
    assert after[0] < 0.3 * before[0]


def test_rates_follow_the_schedule_over_the_run():
    trained = student(steps=5)
    assert [step(trained, n).record["lr"] for n in range(1, 6)] == [[learning_rate(LINEAR, n, 5)] for n in range(5)]


def on_two_ranks(context, parts):
    trained = student(group=everyone(context))
    return [dict(step(trained, n, batch=BATCH.select(parts[context.rank])).stats) for n in (1, 2, 3)]


def test_two_ranks_train_as_one_in_float64():
    trained = student()
    expected = [step(trained, number).stats for number in (1, 2, 3)]
    with gloo_pool(2) as pool:
        for parts in ((BATCH.ids[:3], BATCH.ids[3:]), (BATCH.ids[::2], BATCH.ids[1::2])):
            first, second = pool.run(on_two_ranks, parts)
            assert first == second
            for stats, reference in zip(first, expected, strict=True):
                for name, (total, weight) in reference.items():
                    assert stats[name] == (pytest.approx(total, rel=1e-9), weight)


def test_a_replay_follows_the_record_bit_for_bit():
    first, replayed = student(torch.float32), student(torch.float32, optimizer=OptimizerConfig(lr=1.0))
    for number in (1, 2, 3):
        record = step(first, number).record
        assert step(replayed, number, json.loads(json.dumps(record))).record == record
