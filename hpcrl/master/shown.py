"""Which samples of a step stay for good, and which rows a train step is to show of them. Pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.keeping import kept
from hpcrl.data.samples import SampleMeta
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Ids
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.spills import SpillRef
from hpcrl.durable.step_lines import StepLines
from hpcrl.recipes.algorithm import algorithm_of


def kept_samples(experiment: Any, lines: StepLines) -> dict[str, Ids]:
    """Data set → those of a step's samples that stay; none of a data set on whose samples no call makes anything."""
    settings, seed = experiment.samples, lines.opened.seed
    made_of = {call.dataset for call in algorithm_of(experiment).calls(experiment) if call.outputs}
    generation = section(experiment, "generation", GenerationConfig)
    drawn = 1 if generation is None else generation.evaluation.samples_per_prompt
    found = {
        "train": kept(lines.trained, seed, settings.per_step),
        "eval": kept(lines.opened.eval_ids, seed, settings.per_evaluation, drawn),
    }
    return {name: ids for name, ids in found.items() if ids and name in made_of}


class ToShow(NamedTuple):
    """The samples of which a train step shows rows. `had` is None of one that has no line, or whose line needs no
    other files; else what there is of its own, and the line is written again once the rest is there."""

    ids: Ids = ()
    had: tuple[FileRef, ...] | None = None


NOTHING = ToShow()


def to_show(
    lines: StepLines,
    mfc: MFC,
    call: str,
    experiment: ExperimentConfig,
    recovery: RecoveryPlan,
    meta_of: Callable[[SpillRef], SampleMeta],
) -> ToShow:
    """Of a train step without a line, all samples of its that stay; of a replay, those of which a file is not whole."""
    if not mfc.shown:
        return NOTHING
    worked = set(lines.trained_by(call))
    kept = tuple(sample for sample in kept_samples(experiment, lines).get("train", ()) if sample in worked)
    if not any((line.step, line.call) == (lines.step, call) for line in recovery.replay):
        return ToShow(kept)
    left = recovery.left.get(lines.step)
    if left is None or (call, 0) not in left.awaited:
        return NOTHING
    had = left.shown.get(call, ())
    there = {sample for file in had for sample in meta_of(SpillRef(file)).ids}
    return ToShow(tuple(sample for sample in kept if sample not in there), had)
