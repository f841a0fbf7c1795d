"""The reward role: texts to numbers by the run's reward function. It has no model; any host holds it, without torch."""

from typing import Any

import numpy as np

from hpcrl.config.reward import RewardConfig
from hpcrl.data.datasets import Texts
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.rewards.places import token_rewards
from hpcrl.rewards.response import Response
from hpcrl.rewards.run import RewardFunction
from hpcrl.rewards.statistics import statistics
from hpcrl.workers.host import Outcome, Work
from hpcrl.workers.role import RoleContext


class Reward:
    """Scores responses. A function that fails ends the run with an error that names it."""

    def __init__(self, role: str, experiment: Any, texts: Texts) -> None:
        self.experiment = experiment
        self._role = role
        self._texts = texts
        self._functions = [(self._settings, RewardFunction(self._settings, self._role))]

    def inference(self, work: Work, call: MFC) -> Outcome:
        """prompts, responses, finished → rewards [1]; reward_components [components]; token_rewards [T] or [0].

        NaN is where there is none. With `token_rewards` of length 0 all of a reward is at the end.
        """
        tokens = work.batch.rows("responses")
        scored = self._function().score(self._responses(work.batch, call))
        rows = {
            "rewards": [np.array([it.total], np.float32) for it in scored],
            "reward_components": [np.array(it.scores, np.float32) for it in scored],
            "token_rewards": [token_rewards(*pair, self._texts.decode) for pair in zip(scored, tokens, strict=True)],
        }
        wanted = {key: made for key, made in rows.items() if call.output_remap.get(key, key) in call.outputs}
        return Outcome(SequenceSample.from_rows(work.batch.ids, wanted), statistics(self._settings, scored))

    def _responses(self, batch: SequenceSample, call: MFC) -> list[Response]:
        """The texts, each decoded once."""
        finished = batch.rows("finished") if "finished" in batch.keys else [np.ones(1, np.bool_)] * len(batch.ids)
        rows = zip(batch.ids, batch.rows("prompts"), batch.rows("responses"), finished, strict=True)
        return [
            Response(
                prompt=self._texts.decode(prompt),
                response=self._texts.decode(response),
                row=self._texts.record(call.dataset, sample_id),
                finished=bool(ended[0]),
                tokens=tuple(response.tolist()),
            )
            for sample_id, prompt, response, ended in rows
        ]

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
        self._functions.append((self._settings, RewardFunction(self._settings, self._role)))
        return self._functions[-1][1]


def reward(at: RoleContext[Any]) -> Reward:
    return Reward(at.role, at.experiment, at.texts)
