"""A worker's line to its master for the script that it runs: asks go out, answers wait, rows are got as for a call."""

import queue
import threading
from collections.abc import Callable, Sequence
from itertools import count

from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import Total
from hpcrl.errors import StoppedError
from hpcrl.wire.holders import RowSource
from hpcrl.wire.messages import Message, Request
from hpcrl.wire.script_messages import FromScript, OnceDone, ToScript
from hpcrl.workers.inputs import Gathered


class WorkerScriptLine:
    """Fulfils `hpcrl.workers.host.ScriptLine`. `answered` and `arrived` are told by the talking thread."""

    def __init__(
        self,
        post: Callable[[Message], None],
        gather: Callable[[Request, bool], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self.failed = failed
        self.fault: Callable[[str], None] = lambda point: None
        """Told at each point where a test may strike."""
        self._post = post
        self._gather = gather
        self._answers: queue.SimpleQueue[ToScript | None] = queue.SimpleQueue()
        self._numbers = count(-1, -1)
        self._wanted: dict[int, queue.SimpleQueue[Gathered | None]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, message: FromScript) -> None:
        self.fault("script.did" if isinstance(message, OnceDone) else "script.ask")
        self._post(message)

    def told(self, message: FromScript) -> None:
        self._post(message)

    def hear(self) -> ToScript:
        answer = self._answers.get()
        if answer is None:
            raise StoppedError("the attempt is over.")
        self.fault("script.answered")
        return answer

    def rows(self, ids: Sequence[str], sources: Sequence[RowSource]) -> SequenceSample:
        return self._gathered("fetch", ids, sources).inputs

    def totals(self, sources: Sequence[RowSource]) -> tuple[Total, ...]:
        return self._gathered("mean", (), sources, sums=True).totals

    def _gathered(self, what: str, ids: Sequence[str], sources: Sequence[RowSource], sums: bool = False) -> Gathered:
        box: queue.SimpleQueue[Gathered | None] = queue.SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._wanted[number] = box
        step = sources[0].step if sources else 0
        self._gather(Request(number, step, what, 0, tuple(ids), tuple(sources), None), sums)
        found = box.get()
        if found is None:
            raise StoppedError("the attempt is over.")
        return found

    def answered(self, answer: ToScript) -> None:
        self._answers.put(answer)

    def arrived(self, request: int, gathered: Gathered) -> None:
        """All rows, or sums, of a request of its own, whose number is below 0, are here."""
        with self._lock:
            box = self._wanted.pop(request)
        box.put(gathered)

    def close(self) -> None:
        """Whoever waits is told that nothing comes any more."""
        self._answers.put(None)
        with self._lock:
            for box in self._wanted.values():
                box.put(None)
