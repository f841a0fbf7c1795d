"""What a run reads, compared with what it was submitted with: what `resume` refuses, and what the user lets change."""

from collections.abc import Collection

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.contents import Contents, Seen
from hpcrl.data.datasets import open_datasets
from hpcrl.data.inputs import changed, differences, fingerprints, input_files
from hpcrl.data.order import row_of
from hpcrl.durable.history import inputs_of
from hpcrl.durable.indexes import indexes_to_try
from hpcrl.durable.records import changed_inputs
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.seen import read_seen
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of

ROW_MAKER = "data.row"
"""The setting whose code makes rows."""


def next_inputs(
    run: RunDirectory,
    experiment: ExperimentConfig,
    accepted: Collection[str],
    code: Collection[str],
    taken: Collection[str] = (),
) -> tuple[dict[str, str], list[Seen]]:
    """Setting → new fingerprint, of the inputs that changed and may; and what was read to know them.

    `code` are the settings that name the user's code, `taken` those whose code is new; `experiment` names the new code.

    Raises:
        DataError: others changed, cannot be read, or lack rows that steps still need.
        ConfigurationError: `accepted` names what is neither an input nor code.
    """
    before = inputs_of(run)
    inputs, contents = input_files(experiment, algorithm_of(experiment).rows), Contents(read_seen(run))
    known = sorted({*before, *inputs, *code})
    if strange := sorted(set(accepted) - set(known)):
        raise ConfigurationError(
            [f"--accept-changed {strange[0]}: the run reads nothing of that name."], f"It reads {', '.join(known)}."
        )
    current = fingerprints(inputs, contents)
    differing = changed_inputs({key: text for key, text in before.items() if key in inputs}, current)
    if refused := set(differing) - set(accepted):
        how = differences(before, inputs, contents)
        raise changed({key: how.get(key, _otherwise(key in before)) for key in refused}, run.root)
    rows_are_made_anew = ROW_MAKER in taken
    if rows_are_made_anew or set(differing) & dict(algorithm_of(experiment).rows.inputs(experiment)).keys():
        _refuse_lost_rows(run, experiment, rows_are_made_anew)
    return {key: current[key] for key in differing}, contents.read


def _otherwise(was_read: bool) -> str:
    """How an input differs of which each file is what it was."""
    return "its files are read in another order" if was_read else "it is read only now"


def _refuse_lost_rows(run: RunDirectory, experiment: ExperimentConfig, made_anew: bool) -> None:
    """Raise DataError where the data sets lack a row of a step that is open or will be replayed. `made_anew`: by other
    code than before."""
    of = f", as {ROW_MAKER} makes them now" if made_anew else ""
    recovery = plan_next_attempt(run, plan_for(experiment).changes)
    datasets = open_datasets(experiment, algorithm_of(experiment).rows, indexes_to_try(run))
    rows = {name: dataset.ids for name, dataset in datasets.items()}
    for lines in recovery.opened:
        for name, ids in (("train", lines.ids), ("eval", lines.opened.eval_ids)):
            if lost := [row for row in map(row_of, ids) if row not in rows[name]]:
                more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
                raise DataError(
                    f"row {lost[0]} of step {lines.step}, which is open or will be replayed, is gone from the {name} "
                    f"data{more}{of}. Put back the rows of such steps; other rows may change."
                )
