"""The runs of a folder in a line each. Reads the ends of files only, so that a hundred runs take a second."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import HpcrlError
from hpcrl.foreign import plain
from hpcrl.inspect.metrics import figures, last
from hpcrl.inspect.queue import Queue, Queues
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.shown_settings import shown_settings
from hpcrl.inspect.uncut_table import UncutTable
from hpcrl.inspect.views.status import ENDED, State, judge
from hpcrl.inspect.words import duration

A_DAY_S = 86400.0
GOOD, BAD = ("running", "done"), ("failed", "killed")


class RunLine(msgspec.Struct, frozen=True):
    """A run in a few words. The JSON of `hpcrl list --json` is a list of these."""

    name: str
    run_dir: str
    algorithm: str
    state: State
    why: str
    attempt: int | None
    step: int
    steps: int | None
    metric: str
    value: float | None
    created: float
    last_event: float | None
    topology: str
    jobs: dict[str, str]
    exit_code: int | None


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The run directories in these folders, and those among them. Whatever else is there is passed over."""
    found: dict[Path, None] = {}
    for folder in folders:
        children = sorted(folder.iterdir()) if folder.is_dir() and not _is_run(folder) else [folder]
        found |= dict.fromkeys(path.absolute() for path in children if _is_run(path))
    return list(found)


def list_runs(paths: Iterable[Path], queues: Queues) -> list[RunLine]:
    """The newest first. `queues` are asked once, about all runs with jobs in one that may go on."""
    read = [_draft(RunDirectory(path), queues) for path in paths]
    drafts = [draft for draft in read if isinstance(draft, _Draft)]
    asked = [draft.run for draft in drafts if draft.asks]
    answers = queues.ask(asked) if asked else ()
    found = {run.root: queue for run, queue in zip(asked, answers, strict=True)}
    lines = [line for line in read if isinstance(line, RunLine)]
    lines += [draft.line(found.get(draft.run.root)) for draft in drafts]
    return sorted(lines, key=lambda line: -line.created)


class _Draft:
    """What the directory tells of a run."""

    def __init__(self, run: RunDirectory, experiment: Mapping[str, Any], created: float, queues: Queues) -> None:
        self.run = run
        self._cluster = experiment.get("cluster", {})
        self._has_queue = queues.has(str(self._cluster.get("type")))
        self._experiment = experiment
        self._created = created
        self._reader = RunReader(run)
        self._attempt, self._activity = max(self._reader.attempts, default=None), self._reader.newest

    @property
    def asks(self) -> bool:
        """Whether the queue has a say in its state."""
        return self._has_queue and self._alone()[0] not in ENDED

    def line(self, queue: Queue | None) -> RunLine:
        state, why, code = self._alone() if queue is None else self._judged(queue)
        rows = [self._reader.newest_metrics()]
        shown = figures(rows, self._reader.right_at)[:1]
        return RunLine(
            name=self.run.root.name,
            run_dir=str(self.run.root),
            algorithm=str(self._experiment.get("algorithm", "?")),
            state=state,
            why=why,
            attempt=self._attempt,
            step=self._reader.step,
            steps=self._experiment.get("control", {}).get("steps"),
            metric=shown[0].label if shown else "",
            value=last(rows, shown[0].key) if shown else None,
            created=self._created,
            last_event=None if self._activity is None else self._activity.last,
            topology=str(self._cluster.get("topology" if self._has_queue else "type")),
            jobs=_jobs(self.run) if self._has_queue else {},
            exit_code=code,
        )

    def _alone(self) -> tuple[State, str, int | None]:
        return self._judged(Queue(missing="nobody was asked") if self._has_queue else None)

    def _judged(self, queue: Queue | None) -> tuple[State, str, int | None]:
        return judge(self.run, self._attempt, self._activity, queue)


def _draft(run: RunDirectory, queues: Queues) -> _Draft | RunLine:
    """A line at once for what cannot be read, or only looks like a run: why it cannot."""
    try:
        return _Draft(run, shown_settings(run), run.read_run().created, queues)
    except (HpcrlError, OSError) as error:
        name, why = run.root.name, str(error)
        return RunLine(name, str(run.root), "?", "unknown", why, None, 0, None, "", None, 0.0, None, "", {}, None)


def _is_run(path: Path) -> bool:
    try:
        return (path / "run.json").is_file() and (path / "attempts").is_dir()
    except OSError:
        return False


def _jobs(run: RunDirectory) -> dict[str, str]:
    """Name → id of the newest job of that name."""
    return {name: str(job) for submission in run.submissions() for name, job in submission.jobs.items()}


def render_list(lines: Sequence[RunLine], now: float | None = None) -> UncutTable:
    """A row per run; one whose name others have too is named by its directory, as commands want it."""
    now = time.time() if now is None else now
    names = Counter(line.name for line in lines)
    table = UncutTable()
    for column in ("run", "algorithm", "state", "step", "metric", "last event", "age", "jobs", "code"):
        table.add_column(column, no_wrap=column != "jobs", overflow="fold")
    for line in lines:
        table.add_row(
            Text(plain(line.name if names[line.name] == 1 else line.run_dir)),
            Text(plain(line.algorithm)),
            Text(line.state, style="green" if line.state in GOOD else "red" if line.state in BAD else "yellow"),
            str(line.step) if line.steps is None else f"{line.step}/{line.steps}",
            "" if line.value is None else Text(plain(f"{line.metric} {line.value:.4g}")),
            "" if line.last_event is None else f"{_span(now - line.last_event)} ago",
            _span(now - line.created),
            Text(plain(" ".join([line.topology, *(f"{name} {job}" for name, job in line.jobs.items())]))),
            "" if line.exit_code is None else str(line.exit_code),
        )
    return table


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    return duration(seconds) if seconds < A_DAY_S else f"{seconds / A_DAY_S:.0f} d"
