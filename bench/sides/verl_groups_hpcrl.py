"""A run whose script times its calls, a turn a round. Argument: a folder, which is made anew."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from groups_shapes import ROWS, WORKERS
from serving import serve

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.lines import Tail

SCRIPT = Path(__file__).with_name("verl_groups_script.py")
LIMIT_S, SETTLE_S = 300, 1.0


class Rounds:
    """Of one run, which ends with `end`."""

    def __init__(self, work: Path) -> None:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        self._work = work
        self._run = RunDirectory(work / "run")
        self._step = 0
        settings = {
            "algorithm": f"{SCRIPT}:ALGORITHM",
            "cluster": {"device": "cpu", "workers_per_node": 2 * WORKERS},
            "control": {"steps": 1000, "rehearse": False, "checkpoint": {"seconds": 10_000}},
            "toy": {"rows": ROWS, "batch_size": ROWS},
            "actor": {"mesh": f"0-{WORKERS - 1}"},
            "critic": {"mesh": f"{WORKERS}-{2 * WORKERS - 1}"},
        }
        (work / "run.yaml").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "hpcrl.cli.main", "submit", str(work / "run.yaml"), "--cluster", "local"]
        paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        modules = f"{SCRIPT.parent.parent.parent}:{SCRIPT.parent}"
        environment = os.environ | {"HPCRL_BENCH_FOLDER": str(work), "PATH": paths, "PYTHONPATH": modules}
        self._process = subprocess.Popen([*command, "--run-dir", str(self._run.root)], env=environment)

    def round(self) -> dict[str, object]:
        """The medians of its calls. It is over when its rows are on disk, so that others have the machine again."""
        self._step += 1
        (self._work / f"go-{self._step}").touch()
        took = self._work / f"took-{self._step}"
        self._wait(took.exists)
        self._wait(self._is_closed)
        time.sleep(SETTLE_S)
        return {what: statistics.median(times) for what, times in json.loads(took.read_text()).items()}

    def end(self) -> int:
        """The exit code."""
        (self._work / "stop").touch()
        return self._process.wait(LIMIT_S)

    def _is_closed(self) -> bool:
        """Whether all that the step has made is on disk."""
        rows = Tail(self._run.events(self._run.numbers()[-1])).rows()
        return any(row["event"] == "closed" and row["step"] == self._step for row in rows)

    def _wait(self, until) -> None:
        begun = time.monotonic()
        while not until():
            if self._process.poll() is not None or time.monotonic() - begun > LIMIT_S:
                raise RuntimeError(f"the run does not come to the end of step {self._step}")
            time.sleep(0.05)


if __name__ == "__main__":
    rounds = Rounds(Path(sys.argv[1]))
    try:
        serve(rounds.round)
    finally:
        rounds.end()
