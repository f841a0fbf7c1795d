"""The reward role: texts to numbers by the run's reward function. It has no model; any host holds it, without torch."""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcrl.config.environment import ends_of
from hpcrl.config.generation import EvaluationConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.datasets import Texts
from hpcrl.data.samples import SequenceSample, grouped
from hpcrl.data.tokens import before_stop
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes.texts import SCORED_BY
from hpcrl.rewards.pass_at import pass_statistics
from hpcrl.rewards.places import token_rewards
from hpcrl.rewards.response import Response
from hpcrl.rewards.run import RewardFunction, Scored
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
        """prompts, responses, finished → rewards [1]; reward_components [components]; token_rewards [T] or [0];
        reward_details [bytes], JSON or nothing.

        NaN is where there is none. With `token_rewards` of length 0 all of a reward is at the end.
        """
        return self._score(work, call)[0]

    def judge(self, work: Work, call: MFC) -> Outcome:
        """As `inference`, of the responses of an evaluation: also how likely one of several is right."""
        outcome, scored = self._score(work, call)
        own: EvaluationConfig = self.experiment.generation.evaluation
        return replace(outcome, stats={**outcome.stats, **pass_statistics(self._settings, scored, own.pass_at)})

    def _score(self, work: Work, call: MFC) -> tuple[Outcome, list[list[Scored]]]:
        """The outcome, and what it is of: the scores of each sample's responses."""
        parts = work.batch.parts("responses")
        scored = self._function().score(self._responses(work.batch, call))
        tokens = [part for of_sample in parts for part in of_sample]
        flat: dict[str, list[np.ndarray]] = {
            "rewards": [np.array([it.total], np.float32) for it in scored],
            "reward_components": [np.array(it.scores, np.float32) for it in scored],
            "reward_details": [np.frombuffer(it.details, np.uint8) for it in scored],
            "token_rewards": [token_rewards(*pair, self._texts.decode) for pair in zip(scored, tokens, strict=True)],
        }
        counts = [len(of_sample) for of_sample in parts]
        wanted = {
            key: grouped(made, counts) for key, made in flat.items() if call.output_remap.get(key, key) in call.outputs
        }
        stats = statistics(self._settings, scored)
        return Outcome(SequenceSample.from_rows(work.batch.ids, wanted), stats), grouped(scored, counts)

    def _responses(self, batch: SequenceSample, call: MFC) -> list[Response]:
        """The texts of every response, up to a string that ended it, one sample's after the other's."""
        parts = batch.parts("responses")
        count = sum(map(len, parts))
        ended = [np.ones(1, np.bool_)] * count
        said: list[dict[str, float]] = [{} for _ in range(count)]
        if "finished" in batch.keys:
            ended = [part for of_sample in batch.parts("finished") for part in of_sample]
        for role, key in SCORED_BY.items():
            if key in batch.keys:
                found = (float(part[0]) for of_sample in batch.parts(key) for part in of_sample)
                said = [{**known, role: score} for known, score in zip(said, found, strict=True)]
        texts = [
            (sample, prompt, response)
            for sample, prompt, of_sample in zip(batch.ids, batch.rows("prompts"), parts, strict=True)
            for response in of_sample
        ]
        stop = ends_of(self.experiment)
        return [
            Response(
                prompt=self._texts.decode(prompt),
                response=before_stop(self._texts.decode(response), stop),
                row=self._texts.record(call.dataset, sample_id),
                finished=bool(finished[0]),
                tokens=tuple(response.tolist()),
                model_scores=scores,
            )
            for (sample_id, prompt, response), finished, scores in zip(texts, ended, said, strict=True)
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
