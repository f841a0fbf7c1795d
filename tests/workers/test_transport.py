import os
from collections.abc import Iterator

import pytest

from hpcrl.errors import ExitCode
from hpcrl.wire.channel import RunKey
from hpcrl.wire.messages import Beat
from hpcrl.workers.transport import Transport, TransportArgs

ORPHAN_TIMEOUT_S = 3.0


def test_who_was_stopped_does_not_take_its_own_silence_for_the_masters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its master, which was not stopped, may have a message on the way. One that stays silent is given up in time."""
    now, ended = 0.0, []
    turns: Iterator[float] = iter([0.5, 100.0, *[0.5] * 20])

    def beat() -> Beat:
        nonlocal now
        now += next(turns)
        return Beat()

    def end(code: int) -> None:
        ended.append((now, code))
        transport._stopping = True

    monkeypatch.setattr(os, "_exit", end)
    args = TransportArgs("worker-0", "tcp://127.0.0.1:1", RunKey.generate(), 0.01, ORPHAN_TIMEOUT_S)
    transport = Transport(args, lambda: now)
    transport.beat = beat
    transport.start(None)  # type: ignore[arg-type]
    transport._thread.join(60)
    (at, code), *_ = ended
    assert code == ExitCode.REQUEUE
    assert ORPHAN_TIMEOUT_S < at - 100.5 <= ORPHAN_TIMEOUT_S + 1.0
