"""A point on the test cluster: the same run, struck at the same points, by a sitecustomize that only its jobs see."""

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from support.chaos import started_twice, wait_until, waking
from support.cluster import is_alive
from support.faults import After, Strike
from support.phases import Phased
from support.slurm_cluster import SlurmCluster, hold, up
from support.slurm_runs import SlurmRun

from hpcrl.config.experiment import to_dict
from kills.local import LEAVES_S, armed, experiment, fault_of
from kills.points import STOP, Point
from kills.runs import Left, left

HERE = Path(__file__).parent
PLACE = "HPCRL_KILLS"
"""The variable that names the folder of a point; in it, `point.json`."""
PATIENCE_S = 300.0
SITE = """import sys
sys.path[:0] = {paths!r}
from kills.slurm import arm
arm()
"""


class Cluster:
    """The cluster, from the first point that needs it on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._cluster: SlurmCluster | None = None

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def strike(self, folder: Path, point: Point, reference: Left) -> str:
        """As `local.strike`. Raises AssertionError, and NotHere where this machine cannot have the cluster."""
        if self._cluster is None:
            up()
            self._cluster = self._stack.enter_context(hold(self._folder))
        self._cluster.clean()
        folder.mkdir()
        self._cluster.directory = folder
        self._cluster.env |= _environment(folder, point)
        try:
            return self._strike(self._cluster, folder, point, reference)
        finally:
            self._cluster.directory = self._folder

    def _strike(self, cluster: SlurmCluster, folder: Path, point: Point, reference: Left) -> str:
        run = SlurmRun.submit(cluster, _values(folder.parent / "task", point))
        struck = fault_of(folder, point)
        with waking(run.run, lambda: struck.hit if point.what == STOP else ()):
            wait_until(lambda: run.verdict in ("done", "failed"), PATIENCE_S, "the end of the run")
            assert run.verdict == "done", run.picture()
            run.wait_done()
        assert struck.marker.exists(), "the strike never came"
        wait_until(lambda: not any(map(is_alive, struck.hit)), LEAVES_S, "the end of who was stopped")
        assert left(point.run, run.run) == reference, f"other bits\n{run.picture()}"
        assert started_twice(run.run) == [], started_twice(run.run)
        return "unnoticed" if len(run.run.numbers()) == 1 else "recovered"


def _values(task: Path, point: Point) -> dict[str, object]:
    values = to_dict(experiment(task, point)) | {"name": "kills"}
    values["cluster"] |= {
        "type": "slurm",
        "topology": point.topology,
        "start_timeout_s": 90.0,
        "replace_timeout_s": 120.0,
        "slurm": {
            "partition": "low",
            "master_partition": "low" if point.topology != "array" else "cpu",
            "cpus_per_worker": 2,
            "memory": "4000M",
            "master_memory": "1500M",
            "time": "30",
        },
    }
    return values


def _environment(folder: Path, point: Point) -> dict[str, str]:
    """What makes this point's jobs load `arm` before anything else."""
    tree = HERE.parents[1]
    paths = [str(HERE.parent), str(tree / "tests"), str(tree)]
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE.format(paths=paths))
    (folder / "point.json").write_text(json.dumps(vars(point)))
    return {PLACE: str(folder), "PYTHONPATH": f"{folder / 'site'}:{tree}"}


class ByPid(Strike):
    """Processes of jobs say themselves who they are."""

    def __call__(self, point: str) -> None:
        if point.startswith("as "):
            (self.folder / f"{point.removeprefix('as ')}.pid").write_text(str(os.getpid()))
        super().__call__(point)

    def _pids(self) -> list[int]:
        if self.target in ("self", "all") or self.target.startswith("reward"):
            return super()._pids()
        return [int((self.folder / f"{self.target}.pid").read_text())]


class ByPidAfter(ByPid, After):
    """The same, once another strike has come."""


def arm() -> None:
    """In a process of a job: have `entry.main` pass the fault on, without a word of it in hpcrl."""
    if "hpcrl.launch.slurm.job" not in sys.orig_argv or PLACE not in os.environ:
        return
    from hpcrl.launch import entry

    folder = Path(os.environ[PLACE])
    strike = fault_of(folder, Point(**json.loads((folder / "point.json").read_text())))
    strike.__class__ = ByPidAfter if isinstance(strike, After) else ByPid
    _, *others = entry.main.__defaults__ or ()
    entry.main.__defaults__ = (Phased(armed(strike)), *others)
