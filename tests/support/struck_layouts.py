"""A run that is struck once and has to end as if nothing had happened."""

from dataclasses import dataclass
from pathlib import Path

from support.chaos import create_run, ends_alike, remains
from support.faults import After, Strike
from support.phases import Phased

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.rundir import RunDirectory


@dataclass(frozen=True)
class Blow:
    """KILL, or another signal, for the target when a process passes a point for the nth time, counted from another
    passage on."""

    who: str
    point: str
    nth: int
    target: str = "self"
    after: tuple[str, str, int] | None = None
    what: str = "KILL"

    def strikes(self, folder: Path) -> tuple[Strike, ...]:
        """Those that only mark come first."""
        words = (folder, "kill", self.who, self.point, self.what, self.target, self.nth)
        if self.after is None:
            return (Strike(*words),)
        who, point, nth = self.after
        first = Strike(folder, "first", who, point, "MARK", nth=nth)
        return first, After(*words, first=first)


def check_struck(
    folder: Path, experiment: ExperimentConfig, blow: Blow, undisturbed: RunDirectory, timeout_s: float = 90.0
) -> None:
    run, strikes = create_run(folder / "run", experiment), blow.strikes(folder)
    ends_alike(run, remains(undisturbed), *strikes, told=Phased, timeout_s=timeout_s)
    ours, theirs = exported(run), exported(undisturbed)
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    assert ours == theirs, [name for name, data in ours.items() if data != theirs[name]]


def exported(run: RunDirectory) -> dict[str, bytes]:
    """All files of exports, temporary ones too."""
    files = (path for path in run.exports.rglob("*") if path.is_file())
    return {str(path.relative_to(run.exports)): path.read_bytes() for path in files}
