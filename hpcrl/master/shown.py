"""Which samples of a step stay for good, and which rows a train step is to show of them. Pure functions."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.keeping import kept
from hpcrl.data.order import origin_among
from hpcrl.data.samples import SampleMeta
from hpcrl.dataflow.graph import MFC, Dataset, recipe_name
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Ids
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.spills import SpillRef
from hpcrl.durable.step_lines import StepLines
from hpcrl.recipes.algorithm import algorithm_of


def kept_samples(experiment: Any, lines: StepLines) -> dict[str, Ids]:
    """Data set → those of a step's samples that stay; none of a data set on whose samples no call makes anything."""
    settings, seed = experiment.samples, lines.opened.seed
    calls = {call.name: call for call in algorithm_of(experiment).calls(experiment)}
    made_of = {call.dataset for call in calls.values() if call.outputs}
    generation = section(experiment, "generation", GenerationConfig)
    drawn = 1 if generation is None else generation.evaluation.samples_per_prompt
    found = {
        "train": kept(_with_copies(lines.trained, lines, "train", calls), seed, settings.per_step),
        "eval": kept(_with_copies(lines.opened.eval_ids, lines, "eval", calls), seed, settings.per_evaluation, drawn),
    }
    return {name: ids for name, ids in found.items() if ids and name in made_of}


def _with_copies(ids: Ids, lines: StepLines, data_set: Dataset, calls: Mapping[str, MFC]) -> Ids:
    """Samples of a data set; in the place of one that the script has repeated, the copies that calls were made on."""
    if not lines.called:
        return ids
    found: dict[str, dict[str, None]] = {sample: {} for sample in ids}
    for line in lines.called:
        mfc = calls.get(recipe_name(line.call, calls))
        for sample in line.ids if mfc is not None and mfc.dataset == data_set else ():
            if sample not in found and (of := origin_among(sample, found)):
                found[of][sample] = None
    return tuple(chain.from_iterable(copies or (sample,) for sample, copies in found.items()))


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
