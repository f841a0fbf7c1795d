"""The rows that an attempt shows of closed steps: metrics.jsonl, costs.jsonl. Nothing is ever decided by one."""

import json
from collections.abc import Collection, Iterable, Mapping

from hpcrl.costs import CostFold, Figures, SeenFold, encode
from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry


class StepRows:
    """Of one attempt. The metrics of steps that older attempts closed come first, all at once."""

    def __init__(self, run: RunDirectory, number: int, before: Iterable[Mapping[str, float]]) -> None:
        self._metrics = run.files.open_log(run.metrics(number), "metrics", flush=False)
        self._costs = run.files.open_log(run.costs(number), "costs", flush=False)
        self._added_up, self._seen = CostFold(), SeenFold()
        lines = [_line(row) for row in before if self._seen.feed(row)]
        if lines:
            self._metrics.append(lines)

    def feed(self, entry: Entry) -> None:
        """Count what an event says that something cost."""
        self._added_up.feed(entry)

    def measured(self, step: int, call: str, figures: Collection[Figures]) -> None:
        """Count what the workers of a part have measured."""
        self._added_up.measured(step, call, figures)

    def closed(self, entry: Entry, metrics: Mapping[str, float], events: int) -> None:
        """A step has closed, as this event says; `events` bytes of them are written."""
        self._metrics.append([_line(metrics)])
        self._costs.append([encode(self._added_up.row(entry, events, self._seen.feed(metrics)))])

    def close(self) -> None:
        self._metrics.close()
        self._costs.close()


def _line(row: Mapping[str, float]) -> bytes:
    return json.dumps(row).encode() + b"\n"
