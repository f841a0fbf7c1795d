"""Evaluation of a reward model over pairs. It is never trained."""

from hpcrl.algos.builder import Builder
from hpcrl.algos.pairs import scored
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Engine
from hpcrl.recipes.evaluate_pairs import EvaluatePairsExperiment
from hpcrl.workers.host import Outcome, Work


class RewardModel:
    """Scores both answers of each pair."""

    def __init__(self, engine: Engine, experiment: EvaluatePairsExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def evaluate(self, work: Work, call: MFC) -> Outcome:
        return scored(self.engine, work)

    def close(self) -> None:
        pass


def reward_model(at: Builder[EvaluatePairsExperiment]) -> RewardModel:
    return RewardModel(at.engine(), at.experiment)
