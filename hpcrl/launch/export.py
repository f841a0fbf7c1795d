"""A trained role in Hugging Face format, out of a checkpoint of any run: offline, without torch and without workers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrl.durable.cuts import find_cut
from hpcrl.durable.files import DamagedFileError, Files
from hpcrl.durable.history import read_history
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.placement.exporting import RoleExport, export_of
from hpcrl.placement.plan import make_plan
from hpcrl.recipes.algorithm import experiment_from


@dataclass(frozen=True)
class ExportPlan:
    """One role of one checkpoint, and the folder that it becomes. `attempt` is the run's newest."""

    role: str
    step: int
    export: RoleExport
    shards: tuple[Path, ...]
    folder: Path
    attempt: int

    def write(self, told: Callable[[str], None]) -> bool:
        """Make the folder, which appears whole; False where it is there already. `told` hears what is being written.

        Raises ConfigurationError where the checkpoint is no longer there: its run has gone on.
        """
        files = Files(self.folder.parent)
        self.folder.parent.mkdir(parents=True, exist_ok=True)

        def fill(folder: Path) -> None:
            for number, file in enumerate(self.export.files, 1):
                told(f"{self.role}, step {self.step}: {file} ({number} of {len(self.export.files)})")
                self.export.write_file(folder, file, self.shards)
            self.export.write_description(folder)

        try:
            return files.publish_folder(self.folder, self.attempt, fill, "export")
        except (DamagedFileError, FileNotFoundError) as error:
            raise ConfigurationError(
                [f"the checkpoint of step {self.step} changed while it was read: {error}"],
                "Try again: the run has newer checkpoints now.",
            ) from error


def plan_exports(run_dir: Path, step: int | None, role: str | None, out: Path | None) -> Sequence[ExportPlan]:
    """What would be written; changes nothing.

    Raises ConfigurationError where the run trains no such role, has no such checkpoint, or `out` cannot be the folder.
    """
    run = RunDirectory.open(run_dir)
    experiment = experiment_from(run.configuration())
    plan = make_plan(experiment, experiment.cluster.nodes)
    trained = [replica.role for replica in plan.trained]
    if role is not None and role not in trained:
        names = ", ".join(trained) or "none"
        raise ConfigurationError([f"--role {role} is not trained in {run.root}."], f"Those that are: {names}.")
    chosen = trained if role is None else [role]
    if out is not None and len(chosen) > 1:
        raise ConfigurationError(
            [f"--out {out} can hold one role, and {run.root} trains {', '.join(chosen)}."], "Name one with --role."
        )
    if out is not None and out.exists():
        raise ConfigurationError([f"--out {out} is there already."], "Name a folder that is not.")
    _, manifest = find_cut(run, read_history(run), step, plan.changes.values())
    return [
        ExportPlan(
            each,
            manifest.step,
            export_of(experiment, each),
            tuple(run.files.path(shard) for shard in manifest.roles[each]),
            out or run.export(each, manifest.step),
            max(run.numbers(), default=0),
        )
        for each in chosen
    ]
