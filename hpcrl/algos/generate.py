"""Generation: the model that responds. It is never trained."""

from hpcrl.algos import rollout
from hpcrl.algos.builder import Builder
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Engine
from hpcrl.recipes.generate import GenerateExperiment
from hpcrl.workers.host import Outcome, Work


class Actor:
    """Responds to prompts."""

    def __init__(self, engine: Engine, experiment: GenerateExperiment) -> None:
        self.engine = engine
        self.experiment = experiment

    def generate(self, work: Work, call: MFC) -> Outcome:
        return rollout.generate(self.engine, self.experiment.generation, self.experiment.seed, work, call)

    def close(self) -> None:
        pass


def actor(at: Builder[GenerateExperiment]) -> Actor:
    return Actor(at.engine(), at.experiment)
