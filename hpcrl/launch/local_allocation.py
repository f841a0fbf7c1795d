"""What a run's master asks of this machine: whether agents that it misses are still running."""

from collections.abc import Collection, Mapping
from pathlib import Path

from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.local import LocalLauncher
from hpcrl.master.allocation import Absence


class LocalAllocation:
    """The processes of one submission. They have no end of their own, and nobody starts another in their place."""

    def __init__(self, run_dir: Path, nonce: str) -> None:
        self._run = RunDirectory(run_dir)
        self._nonce = nonce

    def ends(self) -> dict[int, float]:
        return {}

    def replace_missing(self, missing: Mapping[int, tuple[int, int] | None]) -> dict[int, Absence]:
        """Who has ended. Before it is written down what was started, nobody is known to have."""
        submission = next((each for each in self._run.submissions() if each.nonce == self._nonce), None)
        if submission is None:
            return {}
        living = LocalLauncher().living(self._run, submission)
        return {node: _ended(node, last) for node, last in missing.items() if f"agent-{node}" not in living}

    def release(self, nodes: Collection[int]) -> None:
        """Nothing waits here."""


def _ended(node: int, last: tuple[int, int] | None) -> Absence:
    when = " before it met the master" if last is None else ""
    return Absence("ended", f"agent-{node} ended{when} (killed?), and nobody starts it again here")
