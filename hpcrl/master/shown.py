"""Which rows a train step is to show for its step's archive, and what older attempts have of them. A pure function."""

from collections.abc import Callable
from typing import NamedTuple

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.samples import SampleMeta
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Ids
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.spills import SpillRef
from hpcrl.durable.step_lines import StepLines
from hpcrl.master.archive import kept_samples


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
