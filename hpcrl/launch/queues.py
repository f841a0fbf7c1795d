"""The queues of batch systems, as `inspect` asks about runs with jobs there: each is asked once for all of its runs."""

from collections import defaultdict
from collections.abc import Sequence

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.queue import Queue
from hpcrl.inspect.shown_settings import shown_settings
from hpcrl.launch.launcher import declaration_of
from hpcrl.plugins import load


class LauncherQueues:
    """Those of all launchers that declare one. Knows nothing between two questions."""

    def has(self, launcher: str) -> bool:
        """Not of a launcher that is gone: its runs are shown as far as their directories tell."""
        try:
            return bool(declaration_of(launcher).queue)
        except ConfigurationError:
            return False

    def ask(self, runs: Sequence[RunDirectory]) -> list[Queue]:
        by_launcher: dict[str, list[RunDirectory]] = defaultdict(list)
        for run in runs:
            by_launcher[shown_settings(run)["cluster"]["type"]].append(run)
        said = {
            run.root: queue
            for launcher, theirs in by_launcher.items()
            for run, queue in zip(theirs, load(declaration_of(launcher).queue)(theirs), strict=True)
        }
        return [said[run.root] for run in runs]


def has_queue(run: RunDirectory) -> bool:
    return LauncherQueues().has(shown_settings(run)["cluster"]["type"])


def queue_of(run: RunDirectory) -> Queue | None:
    """What the queue says of a run's newest submission; None for a run that has no jobs in one."""
    return LauncherQueues().ask([run])[0] if has_queue(run) else None
