"""Generation: responses of a model to prompts, kept in samples/ of the run directory. Nothing is trained."""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import NameText
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig
from hpcrl.config.samples import SamplesConfig
from hpcrl.data.batch import Batch
from hpcrl.data.rows.prompts import PROMPTS
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import Algorithm, RoleKind
from hpcrl.recipes.environment import GENERATED
from hpcrl.recipes.texts import MADE, read_in_order


@dataclass(frozen=True, kw_only=True)
class GenerateExperiment(ExperimentConfig):
    """Responses of a model to the prompts of data.train; `hpcrl samples` shows and writes them."""

    algorithm: NameText = "generate"
    """What to run."""
    data: DataConfig
    """What is read and how it becomes batches."""
    actor: ModelConfig
    """The model that responds."""
    samples: SamplesConfig = SamplesConfig(per_step="all")
    """What is kept of what the model said."""
    generation: GenerationConfig = GenerationConfig()
    """How responses are sampled."""


CALLS = (MFC("actor_gen", "actor", "generate", ("prompts",), ("responses", "logprobs", "finished")),)


def batch(experiment: GenerateExperiment) -> Batch:
    return read_in_order(experiment.data, experiment.data.samples_per_prompt)


def notices(experiment: GenerateExperiment) -> Iterator[str]:
    if experiment.control.epochs not in (None, 1) and experiment.generation.greedy:
        yield "generation.greedy gives the same responses in each of the control.epochs."


def check(experiment: GenerateExperiment) -> Iterator[Problem]:
    """Equal responses to one prompt are of no use."""
    if experiment.generation.greedy and experiment.data.samples_per_prompt > 1:
        yield Problem(
            ("generation.greedy", "data.samples_per_prompt"),
            f"generation.greedy gives data.samples_per_prompt = {experiment.data.samples_per_prompt} equal responses.",
            "Set one of the two.",
        )


ALGORITHM = Algorithm(
    experiment=GenerateExperiment,
    recipe=lambda experiment: CALLS,
    roles={"actor": RoleKind("hpcrl.algos.generate:actor", "vocabulary")},
    rows=PROMPTS,
    made={key: MADE[key] for key in ("responses", "logprobs", "finished")},
    batch=batch,
    check=check,
    notices=notices,
    metrics={"actor_gen": GENERATED},
)
