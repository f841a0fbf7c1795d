"""The reward role: texts to numbers by the run's reward function. It has no model; any host holds it, without torch."""

from typing import Any

import numpy as np

from hpcrl.config.reward import RewardConfig
from hpcrl.data.datasets import Texts
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.rewards.run import RewardFunction
from hpcrl.workers.host import Outcome, Work
from hpcrl.workers.role import RoleContext

FULL_MARKS = 1.0
"""A response with this reward counts as right in `accuracy`."""


class Reward:
    """Scores responses. A function that fails ends the run with an error that names it."""

    def __init__(self, role: str, experiment: Any, texts: Texts) -> None:
        self.experiment = experiment
        self._role = role
        self._texts = texts
        self._functions = [(self._settings, RewardFunction(self._settings))]

    def inference(self, work: Work, call: MFC) -> Outcome:
        """prompts, responses → rewards."""
        records = [self._texts.record(call.dataset, sample_id) for sample_id in work.batch.ids]
        prompts, answers = (
            [self._texts.decode(row) for row in work.batch.rows(key)] for key in ("prompts", "responses")
        )
        scores = self._function().score(prompts, answers, records)
        count = float(len(scores))
        stats = {
            "reward": (float(sum(scores)), count),
            "accuracy": (float(sum(score >= FULL_MARKS for score in scores)), count),
        }
        rows = [np.array([score], np.float32) for score in scores]
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"rewards": rows}), stats)

    def close(self) -> None:
        for _, function in self._functions:
            function.close()

    @property
    def _settings(self) -> RewardConfig:
        return getattr(self.experiment, self._role)

    def _function(self) -> RewardFunction:
        """That of these settings: what is scored again is scored as it was the first time."""
        for settings, function in self._functions:
            if settings == self._settings:
                return function
        self._functions.append((self._settings, RewardFunction(self._settings)))
        return self._functions[-1][1]


def reward(at: RoleContext[Any]) -> Reward:
    return Reward(at.role, at.experiment, at.texts)
