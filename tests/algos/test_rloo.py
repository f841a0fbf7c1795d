"""RLOO's advantages against their formula, for a group on one rank and on several."""

import math

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.rollouts import group_rollout, policy_experiment

from hpcrl.algos.estimates import estimate
from hpcrl.algos.functional.totals import alone
from hpcrl.algos.rloo import advantages
from hpcrl.data.order import group_of
from hpcrl.workers.host import Work

BATCH = group_rollout(rows=5, per_row=4)


def found(batch, total=alone):
    experiment = policy_experiment("rloo")
    made = estimate(Work(1, "actor_train", 0, batch, (BATCH.ids,)), experiment, 0.0, total)
    return advantages(made, experiment.rloo)


def by_hand():
    scores = dict(zip(BATCH.ids, (float(row[0]) for row in BATCH.rows("rewards")), strict=True))
    rows = []
    for sample, length in zip(BATCH.ids, BATCH.length("responses"), strict=True):
        mates = [other for other in BATCH.ids if group_of(other) == group_of(sample) and other != sample]
        others = [scores[other] for other in mates if not math.isnan(scores[other])]
        score = scores[sample] - sum(others) / len(others)
        rows.append(np.full(length, 0.0 if math.isnan(score) else score))
    return rows


def test_the_baseline_of_a_response_is_the_mean_of_the_others_that_count():
    assert any(math.isnan(row[0]) for row in BATCH.rows("rewards"))
    expected = torch.from_numpy(np.concatenate(by_hand()))
    torch.testing.assert_close(found(BATCH), expected, rtol=1e-12, atol=1e-12)


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(2) as ranks:
        yield ranks


def on_ranks(context, parts):
    return found(BATCH.select(parts[context.rank]), everyone(context).total)


def test_a_group_may_be_on_several_ranks(pool):
    parts = (BATCH.ids[1::2], BATCH.ids[::2])
    rows = dict(zip(BATCH.ids, by_hand(), strict=True))
    for ids, here in zip(parts, pool.run(on_ranks, parts), strict=True):
        expected = torch.from_numpy(np.concatenate([rows[sample] for sample in ids]))
        torch.testing.assert_close(here, expected, rtol=1e-12, atol=1e-12)
