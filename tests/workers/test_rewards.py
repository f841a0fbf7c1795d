"""The reward role: texts in, numbers out, and a failure is a failure."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.config.reward import RewardConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import UserCodeError
from hpcrl.workers.host import Work
from hpcrl.workers.rewards import Reward

CALL = MFC("rew_inf", "reward", "inference", (), ())
EVALUATION = MFC("eval_rew", "reward", "inference", (), (), dataset="eval")


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
    },
)


def scored(call, function="exact", **options):
    role = Reward("reward", SimpleNamespace(reward=RewardConfig(function=function, **options)), Letters())
    try:
        return role.inference(Work(1, call.name, 0, BATCH), call)
    finally:
        role.close()


@pytest.mark.parametrize(("call", "expected"), [(CALL, [1.0, 0.0, 0.0]), (EVALUATION, [0.0, 1.0, 0.0])])
def test_responses_are_compared_with_the_answers_of_their_data_set(call, expected):
    outcome = scored(call)
    assert outcome.sample.ids == BATCH.ids
    assert outcome.sample.data["rewards"].tolist() == expected
    assert outcome.sample.data["rewards"].dtype == np.float32
    assert outcome.stats == {"reward": (1.0, 3.0), "accuracy": (1.0, 3.0)}


def test_partial_credit_counts_as_reward_but_not_as_right(tmp_path):
    path = tmp_path / "half.py"
    path.write_text("def half(prompt, response, record):\n    return 0.5 if prompt == 'ab' else 0.0\n")
    assert scored(CALL, f"{path}:half").stats == {"reward": (1.5, 3.0), "accuracy": (0.0, 3.0)}


def test_a_crashed_reward_is_an_error_and_never_a_zero(tmp_path):
    path = tmp_path / "crash.py"
    path.write_text("def crash(prompt, response, record):\n    return 1 / (len(response) - 1)\n")
    with pytest.raises(UserCodeError, match=r"crash failed on row '1@0'(.|\n)*ZeroDivisionError"):
        scored(CALL, f"{path}:crash")
