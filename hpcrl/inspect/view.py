"""Everything that a run directory tells of its run now, read piece by piece as it grows. Changes nothing there."""

from dataclasses import dataclass, field

from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import RowsLeftOut
from hpcrl.inspect.activity import Activity, CallCost
from hpcrl.inspect.entries import EntryTail
from hpcrl.inspect.lines import Row
from hpcrl.inspect.metrics import MetricsReader


@dataclass
class RunView:
    """The metrics and the activity of all attempts, as of the last `update`."""

    run: RunDirectory
    rows: list[Row] = field(default_factory=list)
    activities: dict[int, Activity] = field(default_factory=dict)
    _epochs: dict[int, int | None] = field(default_factory=dict)
    _tails: dict[int, EntryTail] = field(default_factory=dict)
    _metrics: MetricsReader = field(init=False)

    def __post_init__(self) -> None:
        self._metrics = MetricsReader(self.run)
        self.update()

    def update(self) -> None:
        """Read what was added since the last time. Attempts that a newer one has succeeded are read once."""
        numbers = self.run.numbers()
        growing = [number for number in numbers if number not in self.activities or number >= numbers[-1] - 1]
        for attempt in growing:
            tail = self._tails.setdefault(attempt, EntryTail(self.run.events(attempt)))
            activity = self.activities.setdefault(attempt, Activity(attempt))
            for entry in tail.read():
                activity.feed(entry)
        self.rows = self._metrics.read(growing)

    @property
    def newest(self) -> Activity | None:
        """The newest attempt's activity."""
        return self.activities[max(self.activities)] if self.activities else None

    @property
    def skipped(self) -> int:
        """Lines of the master's events that were damaged or unknown."""
        return sum(tail.skipped for tail in self._tails.values())

    @property
    def left_out(self) -> dict[str, RowsLeftOut]:
        """By source, as the newest attempt said that got as far as its rows."""
        return next(
            (found for _, each in sorted(self.activities.items(), reverse=True) if (found := each.left_out)), {}
        )

    @property
    def step(self) -> int:
        """The last step that has ended; 0 before any."""
        return self.rows[-1]["step"] if self.rows else 0

    def length(self, steps: int | None, epochs: int | None) -> int | None:
        """How many steps the run has by these settings; of so many epochs, as the newest master that had them counted.

        None where no master has counted them yet.
        """
        if steps is not None:
            return steps
        counts = (
            activity.steps
            for attempt, activity in sorted(self.activities.items(), reverse=True)
            if activity.steps is not None and self._epochs_of(attempt) == epochs
        )
        return next(counts, None)

    def _epochs_of(self, attempt: int) -> int | None:
        if attempt not in self._epochs:
            claim = self.run.read_claim(attempt)
            version = 0 if claim is None else self.run.version_of(claim.submission)
            self._epochs[attempt] = self.run.read_settings(version).experiment["control"]["epochs"]
        return self._epochs[attempt]

    @property
    def seconds(self) -> float:
        """The time that all attempts took, without the pauses between them."""
        return sum((activity.last or 0.0) - (activity.began or 0.0) for activity in self.activities.values())

    def costs(self) -> dict[str, CallCost]:
        """What each call has cost in all attempts."""
        totals: dict[str, CallCost] = {}
        for activity in self.activities.values():
            for call, cost in activity.costs.items():
                total = totals.setdefault(call, CallCost())
                total.parts += cost.parts
                total.seconds += cost.seconds
        return totals


def duration(seconds: float) -> str:
    """A time span as a person reads it: 8 s, 1:05, 2:03:04."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}" if minutes else f"{whole} s"


def quantity(value: float) -> str:
    """A rate in three digits: 870, 12.3k, 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
