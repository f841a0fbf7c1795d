"""What a run reads, compared with what it was submitted with: what `resume` refuses, and what the user lets change."""

from collections.abc import Collection

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.data.contents import Contents, Seen
from hpcrl.data.inputs import changed, differences, fingerprints, input_files
from hpcrl.durable.history import accepted_inputs, read_history
from hpcrl.durable.records import changed_inputs
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.seen import read_seen
from hpcrl.errors import ConfigurationError
from hpcrl.recipes.algorithm import algorithm_of


def next_inputs(
    run: RunDirectory, experiment: ExperimentConfig, accepted: Collection[str], code: Collection[str]
) -> tuple[dict[str, str], list[Seen]]:
    """Setting → new fingerprint, of the inputs that changed and may; and what was read to know them.

    `code` are the settings that name the user's code.

    Raises:
        DataError: others changed, or cannot be read.
        ConfigurationError: `accepted` names what is neither an input nor code.
    """
    before = run.read_run().inputs | accepted_inputs(read_history(run))
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
        raise changed({key: how.get(key, "it is read only now") for key in refused}, run.root)
    return {key: current[key] for key in differing}, contents.read
