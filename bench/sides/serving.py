"""A side's end of a duel: say when it is warm, then run a round for every line that comes. Needs nothing installed."""

import json
import os
import sys
import time
from collections.abc import Callable


class Clock:
    """Reports on the file that was stdout when it was made; whatever prints later goes to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._cpu = self._wall = 0.0

    def wait(self, **facts: object) -> bool:
        """Report, wait for the next round, start the clocks; False when there is none."""
        print(json.dumps(facts), file=self._out, flush=True)
        more = bool(sys.stdin.readline())
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return more

    def lap(self) -> dict[str, float]:
        """CPU and wall seconds of this round."""
        return {"cpu_s": time.process_time() - self._cpu, "wall_s": time.perf_counter() - self._wall}


def serve(run: Callable[[], dict[str, object] | None], **facts: object) -> None:
    """Run once to warm up, then once a line; what `run` returns is reported beside the clocks."""
    clock = Clock()
    facts |= run() or {}
    while clock.wait(**facts):
        found = run() or {}
        facts = {**clock.lap(), **found}
