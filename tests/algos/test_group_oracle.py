"""The advantages of all algorithms against float64 formulas written out one by one, for every switch."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.rollouts import group_rollout, policy_experiment

from hpcrl.algos import grpo, ppo, reinforce_plus_plus, remax, rloo
from hpcrl.algos.estimates import estimate
from hpcrl.algos.functional.groups import Groups, standardised
from hpcrl.algos.functional.totals import alone
from hpcrl.config.kl import KLConfig
from hpcrl.data.order import group_of
from hpcrl.data.samples import SequenceSample
from hpcrl.engines.engine import Sequences
from hpcrl.workers.host import Work

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
BATCH = group_rollout(rows=5, per_row=4)
LONGEST = 20


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
        placed = numbers(batch, "token_rewards")[i] if "token_rewards" in batch.keys and not key else []
        tokens = [number * own.reward_scale for number in placed or [0.0] * len(response)]
        tokens[-1] += score - sum(tokens)
        if own.kl.mode == "reward" and not key:
            before = "old_logprobs" if "old_logprobs" in batch.keys else "logprobs"
            pairs = zip(numbers(batch, before)[i], numbers(batch, "ref_logprobs")[i], strict=True)
            tokens = [x - coef * estimator(own.kl.by, a - b) for x, (a, b) in zip(tokens, pairs, strict=True)]
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


def spread(scores):
    return np.std(scores, ddof=1) if len(scores) > 1 else 0.0


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
        return sums[i] - np.mean(of_group(i))

    rows = []
    for i, tokens in enumerate(rewards):
        if tokens is None:
            rows.append(None)
        elif name == "grpo":
            deviation = {"none": 1.0, "batch": spread(scores) + 1e-6}.get(own.std)
            if own.std == "group":
                deviation = spread(of_group(i)) + 1e-6
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


def drawn_section(pick, name):
    """Every switch of an algorithm, set at random."""
    cuts = ["score", "penalty", "mask", *["bootstrap"] * (name == "ppo")]
    kl = KLConfig(mode=pick.choice(["reward", "loss"]), coef=0.3, estimator=pick.choice(["k1", "k2", "k3", "abs"]))
    own = {
        "grpo": {"std": pick.choice(["group", "batch", "none"])},
        "ppo": {"gae_lambda": pick.choice([0.0, 0.5, 1.0]), "whiten_advantages": pick.choice([True, False])},
        "reinforce_plus_plus": {"baseline": pick.choice([True, False])},
        "remax": {},
    }[name]
    return {
        "reward_bias": pick.choice([0.0, 0.2, -1.0]),
        "reward_scale": pick.choice([1.0, 1.5, -0.5]),
        "reward_clip": pick.choice([None, 0.6]),
        "cut": pick.choice(cuts),
        "cut_penalty": 0.7,
        "overlong_buffer": pick.choice([None, 1, 9, LONGEST]),
        "overlong_penalty": pick.choice([0.5, 2.0]),
        "whiten_rewards": pick.choice([False, True]),
        "kl": pick.choice([KLConfig(), kl]),
        **({"discount": pick.choice([1.0, 0.9])} if name in ("ppo", "reinforce_plus_plus") else {}),
        **own,
    }


def drawn_batch(pick, seed):
    """Groups of which some have one response that counts, with scores of tokens and recomputed log-probabilities or
    without."""
    batch = group_rollout(rows=pick.choice([1, 2, 5]), per_row=pick.choice([2, 4, 7]), seed=seed)
    draw, lengths = np.random.default_rng(seed), batch.length("responses")
    more = {
        "token_rewards": [draw.normal(0, 1, n if i % 3 else 0).astype(np.float32) for i, n in enumerate(lengths)],
        "old_logprobs": [draw.normal(-1, 1, n).astype(np.float32) for n in lengths],
    }
    kept = {key: rows for key, rows in more.items() if pick.choice([True, False])}
    return batch.merge(SequenceSample.from_rows(batch.ids, kept)) if kept else batch


@pytest.mark.parametrize("seed", range(60))
def test_advantages_equal_the_formulas_whatever_is_set(seed):
    pick = random.Random(seed)
    name = pick.choice(sorted(MODULES))
    section, batch = drawn_section(pick, name), drawn_batch(pick, seed)
    own = getattr(policy_experiment(name, **section), name)
    expected = torch.tensor(by_hand(batch, name, own), dtype=torch.float64)
    torch.testing.assert_close(found(batch, batch, name, section), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "section"), ADVANTAGES)
def test_advantages_equal_the_formulas(name, section):
    own = getattr(policy_experiment(name, **section), name)
    assert any(math.isnan(row[0]) for row in BATCH.rows("rewards"))
    expected = torch.tensor(by_hand(BATCH, name, own), dtype=torch.float64)
    torch.testing.assert_close(found(BATCH, BATCH, name, section), expected, **TOLERANCE)


@pytest.mark.parametrize("std", ["group", "batch", "none"])
def test_a_response_whose_mates_do_not_count_teaches_nothing(std):
    scores, counted = torch.tensor([7.0, 5.0, 1.0, 3.0]).double(), torch.tensor([True, False, True, True])
    groups = Groups(torch.tensor([0, 0, 1, 1]), counted, 2)
    for advantages in (standardised(scores, groups, std), rloo.left_out(scores, groups)):
        assert advantages[:2].tolist() == [0.0, 0.0] and advantages[3] == -advantages[2] > 0


@pytest.fixture(scope="module")
def pool():
    with gloo_pool(2) as ranks:
        yield ranks


PARTS = ((BATCH.ids[1::2], BATCH.ids[::2]), (BATCH.ids[:3], BATCH.ids[3:]), ((), BATCH.ids))
"""The samples of a group are on both ranks."""


def with_tools(batch, seed):
    """The same rollout, with texts of a tool between the model's tokens, and any numbers there."""
    draw = np.random.default_rng(seed)
    rows = {key: batch.rows(key) for key in batch.keys}
    masks = []
    for length in batch.length("responses"):
        own = np.ones(length, np.bool_)
        masks.append(np.insert(own, draw.integers(0, length + 1, draw.integers(0, 4)), False))
    for key in ("responses", "logprobs", "old_logprobs", "ref_logprobs", "values", "token_rewards"):
        if key in rows:
            rows[key] = [widened(row, mask, draw) for row, mask in zip(rows[key], masks, strict=True)]
    return SequenceSample.from_rows(batch.ids, {**rows, "response_mask": masks})


def widened(row, mask, draw):
    if not len(row):
        return row
    made = draw.integers(1, 9, len(mask)).astype(row.dtype)
    made[mask] = row
    return made


@pytest.mark.parametrize("seed", range(40))
def test_what_a_tool_wrote_is_as_if_it_were_not_there(seed):
    pick = random.Random(seed)
    name = pick.choice(sorted(MODULES))
    section, batch = drawn_section(pick, name) | {"overlong_buffer": None}, drawn_batch(pick, seed)
    wide = with_tools(batch, seed)
    mask = np.concatenate(wide.rows("response_mask"))
    expected = found(batch, batch, name, section)
    torch.testing.assert_close(found(wide, wide, name, section)[torch.from_numpy(mask)], expected, **TOLERANCE)


def test_all_tokens_count_for_what_is_overlong():
    section = {"overlong_buffer": 9, "overlong_penalty": 0.5}
    wide = with_tools(BATCH, 1)
    counted = [not math.isnan(row[0]) for row in wide.rows("rewards")]
    made = estimate(Work(1, "actor_train", 0, wide, (wide.ids,)), policy_experiment("remax", **section), 0.0, alone)
    lost = [min(max((n - (LONGEST - 9)) / 9, 0.0), 1.0) * 0.5 for n in wide.length("responses")]
    kept = [
        row[0] - less if counts else 0.0 for row, less, counts in zip(wide.rows("rewards"), lost, counted, strict=True)
    ]
    np.testing.assert_allclose(made.sums_B.numpy(), kept, rtol=1e-6)


def test_a_response_without_a_token_of_the_model_teaches_nothing():
    batch = SequenceSample.from_rows(BATCH.ids, {key: BATCH.rows(key) for key in BATCH.keys} | {
        "response_mask": [np.full(n, i > 0) for i, n in enumerate(BATCH.length("responses"))]
    })  # fmt: skip
    made = estimate(Work(1, "actor_train", 0, batch, (batch.ids,)), policy_experiment("grpo"), 0.0, alone)
    first = slice(0, BATCH.length("responses")[0])
    assert not made.sequences.counting[first].any() and not made.rewards_N[first].any()


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


def test_sequences_name_what_counts():
    made = estimate(Work(1, "actor_train", 0, BATCH, (BATCH.ids,)), policy_experiment("grpo"), 0.0, alone)
    assert isinstance(made.sequences, Sequences)
    assert made.sequences.counted.tolist() == [not math.isnan(row[0]) for row in BATCH.rows("rewards")]
