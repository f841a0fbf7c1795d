"""A trained role in Hugging Face format, out of a checkpoint of any run: offline, without torch and without workers."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.cuts import find_cut, misses
from hpcrl.durable.digests import saved_digest
from hpcrl.durable.files import DamagedFileError, Files
from hpcrl.durable.held import HeldShards, held, is_read_only, work_folder
from hpcrl.durable.history import History, read_history
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.launch.began_from import compare_with_begin
from hpcrl.launch.exportable import refuse_role
from hpcrl.placement.exporting import DTYPES, RoleExport, export_of
from hpcrl.placement.plan import Plan, plan_for
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.scratch import ScratchFolder

Told = Callable[[str], None]
TOLD_EVERY_S = 5.0


@dataclass(frozen=True)
class ExportPlan:
    """One role of one checkpoint, and the folder that it becomes, in the run (`inside`) or elsewhere.

    `digest` is what the run says of the role as it was saved; None where it says nothing.
    """

    run: RunDirectory
    role: str
    step: int
    export: RoleExport
    shards: tuple[Path, ...]
    digest: str | None
    folder: Path
    inside: bool

    def write(self, told: Told) -> bool:
        """Make the folder, which appears whole; False where it is there already. `told` hears what is being written.

        It hears too of what the folder has from the model that the role began from and that changed since. Raises
        DataError where adapters belong to other weights, and ConfigurationError where the checkpoint is no longer
        there, is not what was saved, or cannot be made into a folder here.
        """
        if self.folder.exists():
            return False
        compare_with_begin(self.run, self.role, told)
        try:
            with ExitStack() as closing:
                folder = self._work_folder(closing) / "folder"
                folder.mkdir(mode=0o700)
                shards = closing.enter_context(held(self.run, self.shards))
                self._fill(folder, shards, told)
                files = Files(self.folder.parent)
                return files.publish_prepared(folder, self.folder, "export")
        except FileNotFoundError as error:
            raise ConfigurationError(
                [f"the checkpoint of step {self.step} changed while it was read: {error}"],
                "Try again: the run has newer checkpoints now.",
            ) from error
        except DamagedFileError as error:
            raise _damaged(self.run, self.step, error) from error

    def elsewhere(self, folder: Path) -> "ExportPlan":
        """The same into a folder outside of the run."""
        return replace(self, folder=folder, inside=False)

    def _fill(self, folder: Path, shards: HeldShards, told: Told) -> None:
        """All files, while the digest of what the shards hold is taken. Raises DamagedFileError for another."""
        if shards.why_in_place:
            told(f"{self.role}, step {self.step}: read in place, as its files cannot be linked: {shards.why_in_place}")
        with ThreadPoolExecutor(1) as beside, self._told_of(folder, told):
            found = beside.submit(self.export.digest, shards.paths)
            for number, file in enumerate(self.export.files, 1):
                told(f"{self.role}, step {self.step}: {file} ({number} of {len(self.export.files)})")
                self.export.write_file(folder, file, shards.paths)
            self.export.write_description(folder)
            digest = found.result()
        if self.digest is not None and digest != self.digest:
            raise DamagedFileError(f"{self.role} has digest {digest}, and the journal says {self.digest}")

    @contextmanager
    def _told_of(self, folder: Path, told: Told) -> Iterator[None]:
        """Every few seconds, how much there is."""
        done = threading.Event()

        def tell() -> None:
            while not done.wait(TOLD_EVERY_S):
                written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                told(f"{self.role}, step {self.step}: {written / 1e9:.2f} GB written")

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()

    def _work_folder(self, closing: ExitStack) -> Path:
        """On the filesystem of the folder, so that it can be renamed."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            if self.inside:
                return work_folder(self.run, closing)
            scratch = ScratchFolder(f".{self.folder.name}.hpcrl-export-", self.folder.parent)
        except OSError as error:
            if not is_read_only(error):
                raise
            raise ConfigurationError(
                [f"{self.folder} cannot be made: {error.strerror}."], "Name a folder elsewhere with --out."
            ) from error
        closing.callback(scratch.remove)
        return scratch.path


@dataclass(frozen=True)
class OfType:
    """An experiment whose role has its numbers in some type, and what tells its folder from that of the run's own."""

    experiment: ExperimentConfig
    suffix: str = ""


def plan_exports(
    run_dir: Path, step: int | None, role: str | None, out: Path | None, dtype: str | None = None
) -> Sequence[ExportPlan]:
    """What would be written; changes nothing.

    Raises ConfigurationError where the run trains no such role, has no such checkpoint, there is no such `dtype`, or
    `out` cannot be the folder.
    """
    run = RunDirectory.open(run_dir)
    experiment = experiment_from(run.configuration())
    plan = plan_for(experiment)
    trained = [replica.role for replica in plan.trained]
    if role is not None and role not in trained:
        raise refuse_role(run, role, trained)
    chosen = trained if role is None else [role]
    if out is not None and len(chosen) > 1:
        raise ConfigurationError(
            [f"--out {out} can hold one role, and {run.root} trains {', '.join(chosen)}."], "Name one with --role."
        )
    if out is not None and out.exists():
        raise ConfigurationError([f"--out {out} is there already."], "Name a folder that is not.")
    history = read_history(run)
    _, manifest = find_cut(run, history, step, trained, misses)
    folder = None if out is None else out.absolute()
    found = [_planned(run, _of_type(experiment, each, dtype), each, manifest, folder) for each in chosen]
    return [replace(each, digest=_digest(run, history, manifest, plan, each.role)) for each in found]


def _planned(run: RunDirectory, of_type: OfType, role: str, manifest: Manifest, out: Path | None) -> ExportPlan:
    own = run.export(role, manifest.step)
    return ExportPlan(
        run=run,
        role=role,
        step=manifest.step,
        export=export_of(of_type.experiment, role),
        shards=tuple(run.files.path(shard) for shard in manifest.roles[role]),
        digest=None,
        folder=out or own.with_name(own.name + of_type.suffix),
        inside=out is None,
    )


def _digest(run: RunDirectory, history: History, manifest: Manifest, plan: Plan, role: str) -> str | None:
    calls = [call for call, changed in plan.changes.items() if changed == role]
    try:
        return saved_digest(history, manifest, role, calls)
    except DamagedFileError as error:
        raise _damaged(run, manifest.step, error) from error


def _damaged(run: RunDirectory, step: int, error: DamagedFileError) -> ConfigurationError:
    return ConfigurationError(
        [f"the checkpoint of step {step} is damaged: {error.damage}."],
        f"Name another step with --step; `hpcrl export {run.root} --list` says which there are.",
    )


def _of_type(experiment: ExperimentConfig, role: str, dtype: str | None) -> OfType:
    section: Any = getattr(experiment, role)
    own = getattr(section, "dtype", None)
    if dtype in (None, own):
        return OfType(experiment)
    if own is None or dtype not in DTYPES:
        there = f"There are {', '.join(DTYPES)}." if own is not None else f"{role} has numbers of one type."
        raise ConfigurationError([f"--dtype {dtype}: {role} cannot be written in it."], there)
    of_type: Any = replace(experiment, **{role: replace(section, dtype=dtype)})
    return OfType(of_type, f".{dtype}")
