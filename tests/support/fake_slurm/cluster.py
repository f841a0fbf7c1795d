"""A Slurm that obeys a test: its commands are real executables, its clock stands still until it is told to move."""

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from hpcrl.launch.slurm.commands import Slurm

SCRIPT = Path(__file__).parent / "slurm.py"
TEXTS = Path(__file__).parents[2] / "launch" / "slurm" / "texts"
NAMES = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo")
VERSIONS = ("22.05", "23.11", "24.11", "25.05")

Fate = Literal["lose", "lose after", "silent after", "hang after", "refuse"]
"""What becomes of a call: its request gets lost, or its reply; it replies nothing, or hangs, having done its work; or
Slurm refuses with `words`."""


class FakeSlurm:
    """One cluster in a folder. Knows nothing of what jobs do: a test says what becomes of them."""

    def __init__(self, folder: Path, version: str = "22.05") -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        text = SCRIPT.read_text().partition("\n")[2]
        for name in NAMES:
            path = self.bin / name
            # Without site-packages a command takes a fiftieth of a second.
            path.write_text(f"#!{sys.executable} -IS\n{text}")
            path.chmod(0o755)
        state = {
            "now": 1_700_000_000, "next": 100, "jobs": [], "calls": [], "plans": [], "words": "", "away_until": 0,
            "visible_after_s": 0, "accounting": True, "accounting_comments": False, "requeue_allowed": True,
            "version": version, "texts": str(TEXTS), "partitions": ["cpu", "gpu", "low", "lowgrace", "high", "cancels"],
            "nodes": {
                "cpu": ["2|16|16000|(null)"], "gpu": ["4|16|16000|gpu:fake:2"],
                "low": ["2|16|16000|(null)", "4|16|16000|gpu:fake:2"],
            },
        }  # fmt: skip
        (folder / "state.json").write_text(json.dumps(state))

    @property
    def environment(self) -> dict[str, str]:
        """Of processes that are to meet this Slurm and no other."""
        rest = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return rest | {"PATH": f"{self.bin}:{os.environ['PATH']}", "FAKE_SLURM": str(self.folder)}

    def commands(self, timeout_s: float = 20.0) -> Slurm:
        return Slurm(self.environment, timeout_s)

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "state.json").read_text()))

    @contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """Between two calls of commands, not during one."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.state
            yield state
            (self.folder / "state.new").write_text(json.dumps(state))
            os.replace(self.folder / "state.new", self.folder / "state.json")

    def set(self, **values: Any) -> None:
        with self.change() as state:
            assert set(values) <= set(state), f"a fake Slurm has {sorted(state)}"
            state |= values

    def advance(self, seconds: float) -> None:
        """The clock moves. Has the form of time.sleep."""
        with self.change() as state:
            state["now"] += seconds

    def away(self, seconds: float) -> None:
        """The controller answers nobody for so long."""
        self.set(away_until=self.state["now"] + seconds)

    def plan(self, command: str, *fates: Fate, words: str = "") -> None:
        """What becomes of the next calls of a command, in turn."""
        with self.change() as state:
            state["plans"] += [[command, fate] for fate in fates]
            state["words"] = words

    def run(self, job: int, nodes: str = "gpu1", **which: int) -> None:
        with self.change() as state:
            for each in self._of(state, job, **which):
                each.update(state="RUNNING", reason="None", nodes=nodes, started=state["now"])

    def end(self, job: int, word: str, exit_code: int = 0, **which: int) -> None:
        with self.change() as state:
            for each in self._of(state, job, **which):
                each.update(state=word, reason="None", exit=f"{exit_code}:0", ended=state["now"])

    def preempt(self, job: int, hold_s: float = 121.0, word: str = "PREEMPTED", **which: int) -> None:
        """Slurm itself takes the nodes away, or loses them, and queues the job again."""
        with self.change() as state:
            for each in self._of(state, job, **which):
                record = {name: each[name] for name in ("exit", "nodes", "submitted", "started")}
                each["past"].append(record | {"state": word, "ended": state["now"]})
                each.update(state="PENDING", reason="BeginTime", nodes="", started=None, ended=None)
                each.update(submitted=state["now"], begin=state["now"] + hold_s)

    @staticmethod
    def _of(state: dict[str, Any], job: int, **which: int) -> list[dict[str, Any]]:
        found = [each for each in state["jobs"] if each["job"] == job]
        found = [each for each in found if all(each[name] == value for name, value in which.items())]
        assert found, f"there is no job {job} {which}"
        return found
