"""The checkpoint of a step, found and verified, for those who only read a run."""

import os
from collections.abc import Callable, Collection, Mapping

from hpcrl.durable.checkpoints import Manifest, checkpoint_damage, read_manifest
from hpcrl.durable.files import DamagedFileError, FileRef, Files, unreadable
from hpcrl.durable.history import History, checkpoint_lines
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError

Look = Callable[[Files, Manifest, Collection[str]], list[str]]
"""Says what is wrong with the shards of a checkpoint, which must have these roles."""


def find_cut(
    run: RunDirectory,
    history: History,
    step: int | None,
    changed_roles: Collection[str],
    look: Look = checkpoint_damage,
) -> tuple[FileRef, Manifest]:
    """The manifest of this step's checkpoint, or (None) of the newest that is whole, and what it says.

    By default the shards' checksums say what is whole. Raises ConfigurationError, with the steps that have one, where
    the run has none of it, or a damaged one.
    """
    lines, manifests = manifests_of(run, history)
    wanted = sorted(manifests, reverse=True) if step is None else [each for each in manifests if each == step]
    if not wanted:
        raise ConfigurationError(
            [_missing(run, step, manifests)],
            "Name a step that has one; control.keep_checkpoints says how many are kept.",
        )
    damaged: list[str] = []
    for each in wanted:
        if not (damage := look(run.files, manifests[each], changed_roles)):
            return lines[each], manifests[each]
        damaged.append(f"--step {each}: the checkpoint is damaged: {'; '.join(damage)}.")
    raise ConfigurationError(damaged, "Name another step.")


def manifests_of(run: RunDirectory, history: History) -> tuple[dict[int, FileRef], dict[int, Manifest]]:
    """By step, the newest first: the manifests that lines name, and what those say that can be read."""
    lines = {line.step: history.current(line.manifest) for line in checkpoint_lines(history)}
    return lines, {each: found for each, ref in lines.items() if (found := _manifest(run, ref)) is not None}


def misses(files: Files, manifest: Manifest, changed_roles: Collection[str]) -> list[str]:
    """Which roles and files a checkpoint lacks, or has of another size. Reads no shard."""
    missing = [f"step {manifest.step} has no {role}" for role in sorted(set(changed_roles) - manifest.roles.keys())]
    for shard in (shard for of_role in manifest.roles.values() for shard in of_role):
        try:
            size = os.stat(files.path(shard)).st_size
        except OSError as error:
            missing.append(unreadable(shard.name, error))
        else:
            if size != shard.size:
                missing.append(f"{shard.name} has {size} bytes, {shard.size} were published")
    return missing


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
