"""The toy's graph with more calls of the actor, each as far behind as is asked: before a choice, after it, anywhere."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import numpy as np

from hpcrl.config.bounds import Natural
from hpcrl.config.fields import ChangeClass
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes import toy
from hpcrl.recipes.toy import ToyExperiment
from hpcrl.workers.host import Outcome, Work
from hpcrl.workers.toy import ToyHost, ToyRole


@dataclass(frozen=True, kw_only=True)
class LagsConfig:
    """How many versions a call is behind."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY

    actor_gen: Natural = 2
    """Generates what steps choose from."""
    actor_old: Natural = 1
    """Looks at all rows drawn."""
    actor_new: Natural = 0
    """Looks at the chosen rows."""
    critic_inf: Natural = 1
    """Looks at all rows drawn."""
    ref_inf: Natural = 1
    """Looks at the chosen rows."""


@dataclass(frozen=True, kw_only=True)
class LaggingExperiment(ToyExperiment):
    """The toy, behind."""

    lags: LagsConfig = LagsConfig()
    """How far."""


LOOKS = (
    MFC("actor_old", "actor", "inference", ("x",), ("o",), {}, {"look": "o"}, method="look"),
    MFC("actor_new", "actor", "inference", ("x", "y"), ("n",), {}, {"look": "n"}, method="look", rows="chosen"),
)


def recipe(experiment: LaggingExperiment) -> tuple[MFC, ...]:
    """The actor learns from what its older and its newer self say; they stand in for reference and critic."""
    calls = {call.name: call for call in (*toy.recipe(experiment), *LOOKS)}
    calls["actor_train"] = msgspec.structs.replace(
        calls["actor_train"], inputs=("x", "y", "r", "n", "o"), input_remap={"n": "z", "o": "v"}
    )
    lags = msgspec.to_builtins(experiment.lags)
    return tuple(msgspec.structs.replace(call, lag=lags.get(call.name, 0)) for call in calls.values())


class LaggingHost(ToyHost):
    """The toy's host; its actor looks at rows, too."""

    def look(self, work: Work, role: ToyRole) -> Outcome:
        w = self._whole(role, role.w)
        seen = work.batch.rows("y" if "y" in self._plan.call(work.call).inputs else "x")
        rows = [0.3 * np.resize(row, w.shape) + 0.2 * w for row in seen]
        stats = {"look": (float(sum(row.sum() for row in rows)), float(len(rows)))}
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"look": rows}), stats)


ALGORITHM: Any = replace(
    toy.ALGORITHM,
    experiment=LaggingExperiment,
    recipe=recipe,
    made={**toy.ALGORITHM.made, "n": toy.ALGORITHM.made["y"], "o": toy.ALGORITHM.made["y"]},
    metrics={**toy.ALGORITHM.metrics, "actor_old": ("look",), "actor_new": ("look",)},
    host=f"{__name__}:LaggingHost",
)
