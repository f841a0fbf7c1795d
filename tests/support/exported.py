"""What `hpcrl export` makes of a run's checkpoints, beside what the run has exported itself."""

from pathlib import Path

from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.export import plan_exports
from hpcrl.launch.exportable import read_exports


def contents(folder: Path) -> dict[str, bytes]:
    """Name → content, of all that is in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_exports(run: RunDirectory, folder: Path) -> int:
    """Every checkpoint that the run has exported gives the same bytes offline; how many there were."""
    folder.mkdir()
    there = [each for each in read_exports(run.root).exportable if each.folder]
    for each in there:
        out = folder / f"{each.role}-{each.step}"
        [plan] = plan_exports(run.root, each.step, each.role, out)
        assert plan.digest is not None and plan.write(lambda _: None)
        assert contents(out) == contents(Path(each.folder)), (each.role, each.step)
    return len(there)
