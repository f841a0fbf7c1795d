"""The checkpoint of a step, found and verified, for those who only read a run."""

from collections.abc import Collection, Mapping

from hpcrl.durable.checkpoints import Manifest, checkpoint_damage, read_manifest
from hpcrl.durable.files import DamagedFileError, FileRef
from hpcrl.durable.history import History, checkpoint_lines
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError


def find_cut(
    run: RunDirectory, history: History, step: int | None, changed_roles: Collection[str]
) -> tuple[FileRef, Manifest]:
    """The manifest of this step's checkpoint, or (None) of the newest that is whole, and what it says.

    Raises ConfigurationError, with the steps that have one, where the run has none of it, or a damaged one.
    """
    lines = {line.step: history.current(line.manifest) for line in checkpoint_lines(history)}
    manifests = {each: found for each, ref in lines.items() if (found := _manifest(run, ref)) is not None}
    wanted = sorted(manifests, reverse=True) if step is None else [each for each in manifests if each == step]
    if not wanted:
        raise ConfigurationError(
            [_missing(run, step, manifests)],
            "Name a step that has one; control.keep_checkpoints says how many are kept.",
        )
    damaged: list[str] = []
    for each in wanted:
        if not (damage := checkpoint_damage(run.files, manifests[each], changed_roles)):
            return lines[each], manifests[each]
        damaged.append(f"--step {each}: the checkpoint is damaged: {'; '.join(damage)}.")
    raise ConfigurationError(damaged, "Name another step.")


def _missing(run: RunDirectory, step: int | None, there: Mapping[int, Manifest]) -> str:
    if step is None:
        return f"{run.root} has no checkpoint yet."
    steps = ", ".join(map(str, sorted(there)))
    return f"--step {step}: {run.root} has no checkpoint of it; it has {steps or 'none yet'}."


def _manifest(run: RunDirectory, ref: FileRef) -> Manifest | None:
    try:
        return read_manifest(run.files, ref)
    except (DamagedFileError, FileNotFoundError):
        return None
