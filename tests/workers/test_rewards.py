"""The reward role: texts in, numbers out, and a failure is a failure."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.config.reward import RewardConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.means import together
from hpcrl.errors import UserCodeError
from hpcrl.recipes.algorithm import on_eval
from hpcrl.recipes.texts import SCORING
from hpcrl.workers.host import Work
from hpcrl.workers.rewards import Reward

EVALUATION = on_eval(SCORING)


class Letters:
    """Token i is the i-th letter."""

    def decode(self, tokens):
        return "".join(chr(ord("a") + token) for token in tokens)

    def record(self, source, sample_id):
        return {"id": sample_id, "answer": {"train": "cd", "eval": "e"}[source]}


BATCH = SequenceSample.from_rows(
    ["0@0", "1@0", "2@0"],
    {
        "prompts": [np.array([0, 1], np.int32)] * 3,
        "responses": [np.array(row, np.int32) for row in ([2, 3], [4], [2, 3, 4])],
        "finished": [np.array([True])] * 2 + [np.array([False])],
    },
)


def scored(call, function="exact", **options):
    settings = RewardConfig(**({"function": function} | options))
    role = Reward("reward", SimpleNamespace(reward=settings), Letters())
    try:
        return role.inference(Work(1, call.name, 0, BATCH), call)
    finally:
        role.close()


@pytest.mark.parametrize(("call", "expected"), [(SCORING, [1.0, 0.0, 0.0]), (EVALUATION, [0.0, 1.0, 0.0])])
def test_responses_are_compared_with_the_answers_of_their_data_set(call, expected):
    outcome = scored(call)
    assert outcome.sample.ids == BATCH.ids
    assert outcome.sample.data["rewards"].tolist() == expected
    assert outcome.sample.data["rewards"].dtype == np.float32
    assert outcome.sample.data["reward_components"].tolist() == expected
    assert outcome.sample.length("token_rewards") == (0, 0, 0)
    assert outcome.stats == {
        "reward": (1.0, 3.0),
        "accuracy": (1.0, 3.0),
        "dropped": (0.0, 3.0),
        "not_scorable": (0.0, 3.0),
    }


def test_partial_credit_counts_as_reward_but_not_as_right(tmp_path):
    path = tmp_path / "half.py"
    path.write_text("def half(prompt, response, row):\n    return 0.5 if prompt == 'ab' else 0.0\n")
    stats = scored(SCORING, f"{path}:half").stats
    assert (stats["reward"], stats["accuracy"]) == ((1.5, 3.0), (0.0, 3.0))
    assert scored(SCORING, f"{path}:half", right_at=0.5).stats["accuracy"] == (3.0, 3.0)


def test_a_crashed_reward_is_an_error_and_never_a_zero(tmp_path):
    path = tmp_path / "crash.py"
    path.write_text("def crash(prompt, response, row):\n    return 1 / (len(response) - 1)\n")
    with pytest.raises(UserCodeError, match=r"crash failed on row '1@0'(.|\n)*ZeroDivisionError"):
        scored(SCORING, f"{path}:crash")


def user_file(folder, text):
    path = folder / "mine.py"
    path.write_text(text)
    return path


def test_components_add_up_by_their_weights_and_each_is_kept_and_reported(tmp_path):
    path = user_file(tmp_path, "def size(response):\n    return {'score': len(response) / 10, 'words': 2}\n")
    components = {
        "right": {"function": "exact", "weight": 3.0},
        "size": {"function": f"{path}:size", "weight": -0.1},
    }
    outcome = scored(SCORING, function=None, components=components, right_component="right")
    sizes = [0.2, 0.1, 0.3]
    totals = [3.0 - 0.1 * 0.2, -0.1 * 0.1, -0.1 * 0.3]
    assert outcome.sample.data["rewards"].tolist() == [np.float32(total) for total in totals]
    rows = [row.tolist() for row in outcome.sample.rows("reward_components")]
    assert rows == [[right, np.float32(size)] for right, size in zip([1.0, 0.0, 0.0], sizes, strict=True)]
    assert together([outcome.stats["reward"]]) == (pytest.approx(sum(totals), abs=1e-15), 3.0)
    assert outcome.stats["right"] == outcome.stats["accuracy"] == (1.0, 3.0)
    assert together([outcome.stats["size"]]) == (pytest.approx(0.6), 3.0)
    assert outcome.stats["size_words"] == (6.0, 3.0)


def test_what_cannot_be_scored_has_no_reward_and_is_in_no_mean(tmp_path):
    path = user_file(tmp_path, "def score(response, finished):\n    return 2.0 if finished else None\n")
    outcome = scored(SCORING, f"{path}:score")
    np.testing.assert_array_equal(outcome.sample.data["rewards"], [2.0, 2.0, np.nan])
    np.testing.assert_array_equal(outcome.sample.data["reward_components"], [2.0, 2.0, np.nan])
    assert outcome.stats["reward"] == (4.0, 2.0)
    assert outcome.stats["not_scorable"] == (1.0, 3.0)


def test_a_component_without_a_score_adds_nothing_to_the_others(tmp_path):
    path = user_file(tmp_path, "def score(finished):\n    return None if finished else 0.5\n")
    components = {"own": {"function": f"{path}:score"}, "exact": {"function": "exact"}}
    outcome = scored(SCORING, function=None, components=components)
    assert outcome.sample.data["rewards"].tolist() == [1.0, 0.0, 0.5]
    assert outcome.stats["own"] == (0.5, 1.0)


def test_a_share_of_a_score_is_at_the_token_that_ends_at_its_character(tmp_path):
    path = user_file(
        tmp_path,
        "def score(response):\n"
        "    return {'scores': [(1, 0.5), (len(response), -2.0)]} if len(response) > 1 else 1.0\n",
    )
    components = {"steps": {"function": f"{path}:score", "weight": 2.0}, "exact": {"function": "exact"}}
    outcome = scored(SCORING, function=None, components=components)
    assert [row.tolist() for row in outcome.sample.rows("token_rewards")] == [[1.0, -3.0], [], [1.0, 0.0, -4.0]]
    assert outcome.sample.data["rewards"].tolist() == [-2.0, 2.0, -3.0]


def test_a_call_that_makes_rewards_alone_is_given_no_more():
    call = MFC("rew_inf", "reward", "inference", ("prompts", "responses"), ("rewards",))
    assert scored(call).sample.keys == ("rewards",)
