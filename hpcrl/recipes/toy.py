"""PPO's graph over numpy vectors, with one-letter keys: tries a cluster's plumbing in seconds, without a model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import msgspec

from hpcrl.config.bounds import Count, Natural, NonNegative, Positive
from hpcrl.config.ema import EMAConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, NameText
from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.config.model import PlacementConfig
from hpcrl.data.batch import Batch
from hpcrl.data.choice import Choice, FirstToEnd
from hpcrl.data.rows.vectors import VECTORS, vector_rows
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import Algorithm, RoleKind, on_eval
from hpcrl.recipes.in_flight import in_rounds


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """Vectors instead of models, numbers instead of texts."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    width: Count = 16
    """Length of a trained role's vector."""
    rows: Count = 64
    """Rows of the made-up data set."""
    batch_size: Count = 8
    """Rows per step."""
    samples_per_row: Count = 1
    """Samples of each row of a step."""
    lr: Annotated[Positive, ChangeClass.NUMBERS] = 0.05
    """Learning rate."""
    delay_s: Annotated[NonNegative, ChangeClass.PLACEMENT] = 0.0
    """How long each call sleeps."""
    reference_ema: EMAConfig = EMAConfig()
    """Whether the reference follows the actor."""
    filter_groups: FilterGroupsConfig = FilterGroupsConfig()
    """Train on rows whose samples differ in a reward of 0 or 1."""
    in_flight: Count | None = None
    """Make so many rows at a time, each in up to three rounds, and train on those that end first."""
    max_age: Natural | None = None
    """With in_flight, rows begun more steps ago are begun anew."""


@dataclass(frozen=True, kw_only=True)
class ToyExperiment(ExperimentConfig):
    """PPO's graph over numpy vectors: tries a cluster's plumbing in seconds."""

    algorithm: NameText = "toy"
    """What to run."""
    toy: ToyConfig = ToyConfig()
    """The size of the toy."""
    actor: PlacementConfig = PlacementConfig()
    """Stands for the policy."""
    critic: PlacementConfig = PlacementConfig()
    """Stands for the value function."""
    reference: PlacementConfig = PlacementConfig()
    """Stands for the reference."""
    reward: PlacementConfig = PlacementConfig()
    """Stands for the reward."""


ROLLOUT = ("x", "y", "r", "z", "v")

CALLS = (
    MFC("actor_gen", "actor", "generate", ("x",), ("y",)),
    MFC("rew_inf", "reward", "inference", ("x", "y"), ("r",)),
    MFC("ref_inf", "reference", "inference", ("x", "y"), ("z",)),
    MFC("critic_inf", "critic", "inference", ("x", "y"), ("v",)),
    MFC("actor_train", "actor", "train_step", ROLLOUT, shown=("t",)),
    MFC("critic_train", "critic", "train_step", ROLLOUT),
    on_eval(MFC("eval_gen", "actor", "generate", ("x",), ("y",))),
    on_eval(MFC("eval_rew", "reward", "inference", ("x", "y"), ("r",))),
)


VECTOR = RoleKind("hpcrl.workers.toy:ToyRole", axes=("dp", "tp", "pp"))
FOLLOW = MFC("ref_blend", "reference", "blend", (), blends="actor")


def recipe(experiment: ToyExperiment) -> tuple[MFC, ...]:
    """Where steps choose, the reward gives samples a 0 or 1 besides, and the reference waits for the choice."""
    calls = {call.name: call for call in CALLS}
    if experiment.toy.in_flight is not None:
        first = calls.pop("actor_gen")
        late = {name: msgspec.structs.replace(call, rows="chosen") for name, call in calls.items()}
        calls = {"actor_gen": in_rounds(first, ("n",)), **late}
    elif choice(experiment) is not None:
        calls["rew_inf"] = msgspec.structs.replace(calls["rew_inf"], outputs=("r", "s"))
        calls["ref_inf"] = msgspec.structs.replace(calls["ref_inf"], rows="chosen")
    follows = experiment.toy.reference_ema.decay is not None
    return (*calls.values(), FOLLOW) if follows else tuple(calls.values())


def choice(experiment: ToyExperiment) -> Choice | FirstToEnd | None:
    groups, in_flight = experiment.toy.filter_groups, experiment.toy.in_flight
    if in_flight is not None:
        return FirstToEnd(key="n", in_flight=in_flight, max_age=experiment.toy.max_age, setting="toy.in_flight")
    if groups.metric is None:
        return None
    return Choice(
        key="s", max_rounds=groups.max_rounds, on_shortage=groups.on_shortage, setting="toy.filter_groups.metric"
    )


def check(experiment: ToyExperiment) -> Iterator[Problem]:
    toy = experiment.toy
    if toy.batch_size > toy.rows:
        yield Problem(
            ("toy.batch_size", "toy.rows"),
            f"toy.batch_size = {toy.batch_size} must be at most toy.rows = {toy.rows}.",
            "Lower the first.",
        )
    if toy.filter_groups.metric not in (None, "reward"):
        yield Problem(
            ("toy.filter_groups.metric",),
            f"toy.filter_groups.metric = {toy.filter_groups.metric} must be reward or null.",
            "Set toy.filter_groups.metric.",
        )


ALGORITHM = Algorithm(
    experiment=ToyExperiment,
    recipe=recipe,
    roles={
        **dict.fromkeys(("actor", "critic", "reward"), VECTOR),
        "reference": replace(VECTOR, decay=lambda experiment, step: experiment.toy.reference_ema.at(step)),
    },
    rows=vector_rows("x", lambda experiment: (experiment.toy.rows, experiment.toy.width), "toy.batch_size"),
    made=dict.fromkeys(("y", "n", "r", "s", "z", "v", "t"), VECTORS),
    batch=lambda experiment: Batch(rows=experiment.toy.batch_size, per_row=experiment.toy.samples_per_row),
    choice=choice,
    check=check,
    metrics={
        "actor_gen": ("norm",),
        "rew_inf": ("r",),
        "ref_inf": ("z",),
        "critic_inf": ("v",),
        "actor_train": ("loss",),
        "critic_train": ("loss",),
        "eval_gen": ("norm",),
        "eval_rew": ("r",),
    },
    host="hpcrl.workers.toy:ToyHost",
    export="hpcrl.workers.toy:ToyExport",
)
