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
from hpcrl.engines.engine import Sequences
from hpcrl.engines.schedule import learning_rate
from hpcrl.workers.host import Work

CALL = MFC("actor_train", "actor", "train_step", (), ())
LINEAR = OptimizerConfig(lr=0.02, schedule="linear", warmup_steps=2)


def batch_of(count, seed=0):
    prompts, responses = random_rows(count, seed)
    mask = [np.ones(len(response), np.bool_) for response in responses]
    rows = {"prompts": prompts, "answers": responses, "answer_mask": mask}
    return SequenceSample.from_rows([f"{i}@0" for i in range(count)], rows)


def test_what_is_not_learnt_of_an_answer_counts_nowhere():
    """As if those tokens were context: each learnt token is the only label of a text of its own."""
    generator, rows = np.random.default_rng(0), {key: BATCH.rows(key) for key in ("prompts", "answers")}
    mask = [generator.random(len(answer)) < 0.5 for answer in rows["answers"]]
    masked = SequenceSample.from_rows(BATCH.ids, {**rows, "answer_mask": mask})
    texts = list(zip(rows["prompts"], rows["answers"], mask, strict=True))
    parts = [(prompt, answer, i) for prompt, answer, of in texts for i in np.flatnonzero(of).tolist()]
    alone = Sequences.from_rows(
        [np.concatenate([prompt, answer[:i]]) for prompt, answer, i in parts],
        [answer[i : i + 1] for _, answer, i in parts],
    )
    expected = -float(np.sum(student().engine.forward(alone), dtype=np.float64))
    trained, learnt = student(), sum(int(of.sum()) for of in mask)
    assert trained.evaluate(Work(0, "eval", 0, masked), CALL).stats["loss"] == (pytest.approx(expected), learnt)
    total, weight = step(trained, batch=masked).stats["loss"]
    assert total / weight == pytest.approx(expected / learnt)


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
