"""What an attempt shows of its steps: metrics.jsonl, costs.jsonl, live.json. Nothing is ever decided by one."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from hpcrl.cost_fold import CostFold, SeenFold
from hpcrl.costs import Live, encode, encode_live
from hpcrl.durable.files import FileRef
from hpcrl.durable.metrics_log import MetricsLog
from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry
from hpcrl.master.attempt_records import Whereabouts
from hpcrl.progress import Progress

LEAST_S = 1.0
"""`live.json` is written no sooner after the last time, but for what is told at once."""
SHARE = 100
"""The same, by what it took: where files are slow, it takes a hundredth of the time at most."""


class StepRows:
    """Of one attempt. The metrics of steps that older attempts closed come first, all at once."""

    def __init__(
        self,
        run: RunDirectory,
        number: int,
        before: Iterable[Mapping[str, float]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = MetricsLog(run, number)
        self._costs = run.files.open_log(run.costs(number), "costs", flush=False)
        self._live = LiveFile(lambda data: run.files.replace(run.live(number), data), monotonic)
        self._monotonic = monotonic
        self._added_up, self._seen = CostFold(), SeenFold()
        self.whereabouts: Whereabouts = dict
        before = [*before]
        self._metrics.append(before)
        for row in before:
            self._seen.feed(row)

    def feed(self, entry: Entry) -> None:
        """Count what an event says."""
        self._added_up.feed(entry)

    def follow(self, progress: Progress) -> None:
        """Count what something cost."""
        self._added_up.follow(progress, time.time(), self._monotonic())

    def closed(self, entry: Entry, metrics: Mapping[str, float], events: int) -> None:
        """A step has closed, as this event says; `events` bytes of them are written."""
        self._metrics.append([metrics])
        self._costs.append([encode(self._added_up.row(entry, events, self._seen.feed(metrics)))])

    def first(self, rows: int) -> FileRef:
        """What holds so many rows of metrics, from the first on."""
        return self._metrics.first(rows)

    def show(self, at_once: bool = False) -> None:
        """Replace `live.json`, if anything has changed, and not too soon."""
        if at_once or self._live.is_due():
            self._live.show(self._added_up.live(time.time(), self._monotonic(), self.whereabouts()))

    def close(self) -> None:
        self.show(at_once=True)
        self._metrics.close()
        self._costs.close()


class LiveFile:
    """What an attempt has under way, in a file that is replaced again and again: so that it is known, but for the last
    second, once this process is killed. A disk that takes none of it ends nothing."""

    def __init__(self, write: Callable[[bytes], None], monotonic: Callable[[], float]) -> None:
        self._write = write
        self._monotonic = monotonic
        self._due = -float("inf")
        self._shown: Live | None = None

    def is_due(self) -> bool:
        return self._monotonic() >= self._due

    def show(self, live: Live) -> None:
        """But for a later time it may be what is there."""
        begun = self._monotonic()
        shown = self._shown
        if shown is None or msgspec.structs.replace(live, time=shown.time, at_s=shown.at_s) != shown:
            self._shown = live
            with suppress(OSError):
                self._write(encode_live(live))
        took_s = self._monotonic() - begun
        self._due = begun + max(LEAST_S, SHARE * took_s)
