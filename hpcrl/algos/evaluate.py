"""Evaluation: the model that is evaluated. It is never trained."""

from dataclasses import replace

from hpcrl.algos import answers, rollout
from hpcrl.algos.builder import Builder
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Engine
from hpcrl.recipes.evaluate import EvaluateExperiment
from hpcrl.workers.host import Outcome, Work


class Actor:
    """Responds to prompts, and says how likely it finds the answers."""

    def __init__(self, engine: Engine, experiment: EvaluateExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def generate(self, work: Work, call: MFC) -> Outcome:
        if step := self.experiment.evaluate.as_step:
            work = replace(work, step=step)
        return rollout.evaluate(self.engine, self.experiment.generation, self.experiment.seed, work, call)

    def evaluate(self, work: Work, call: MFC) -> Outcome:
        return answers.losses(self.engine, work)

    def close(self) -> None:
        pass


def actor(at: Builder[EvaluateExperiment]) -> Actor:
    return Actor(at.engine(), at.experiment)
