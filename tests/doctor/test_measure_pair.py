"""A listener and a reader in one process, and a filesystem between them that misbehaves."""

import errno
import threading
from pathlib import Path

import pytest

from hpcrl.doctor import measure_pair, peer
from hpcrl.doctor.measure_pair import RACES, PairReader
from hpcrl.doctor.measurements import PairMeasurements
from hpcrl.doctor.peer import Asker, Listener, Make
from hpcrl.wire.address import Network


@pytest.fixture
def listener(tmp_path):
    made = Listener(1, Network(), tmp_path)
    yield made
    made.close()


def reader(folder: Path, listener: Listener, deadline_s: float = 5.0) -> PairReader:
    return PairReader(folder, "0-1", 0, Asker(listener.hello), deadline_s)


def measured(folder: Path, listener: Listener) -> PairMeasurements:
    return reader(folder, listener).measure(PairMeasurements(other=1, connect_s=0.0))


class LateListener(Listener):
    """What it makes is seen a while after it has said so."""

    LATE_S = 1.0

    def _do(self, wish):
        if isinstance(wish, Make):
            threading.Timer(self.LATE_S, super()._do, (wish,)).start()
            return True
        return super()._do(wish)


@pytest.mark.parametrize("how", ["list", "open"])
def test_the_time_until_a_file_is_seen_is_measured(monkeypatch, tmp_path, how):
    monkeypatch.setattr(measure_pair, "SEEN_ROUNDS", 2)
    late = LateListener(1, Network(), tmp_path)
    seen = reader(tmp_path, late)._seen(how)
    assert all(0.5 < second < 30.0 for second in seen.seconds) and len(seen.seconds) == 2


def test_what_is_never_seen_is_tried_once(monkeypatch, tmp_path):
    monkeypatch.setattr(LateListener, "LATE_S", 60.0)
    late = LateListener(1, Network(), tmp_path)
    assert reader(tmp_path, late, 0.1)._seen("list").seconds == (None,)


def test_a_name_that_two_can_make_is_found_out(monkeypatch, tmp_path, listener):
    both = {"link": lambda path, index: None, "create": peer.ATTEMPTS["create"], "mkdir": _refuse}
    monkeypatch.setattr(peer, "ATTEMPTS", both)
    link, create, mkdir = measured(tmp_path, listener).races
    assert (link.one, link.both) == (0, RACES)
    assert (create.one, create.both) == (RACES, 0)
    assert mkdir.failed == "Operation not permitted"


def _refuse(path: Path, index: int) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_stale_handles_are_counted_and_tried_again(monkeypatch, tmp_path, listener):
    real = measure_pair._read_slowly
    calls = iter(range(10**9))

    def sometimes_stale(path: Path) -> bytes:
        if next(calls) % 10 == 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path)

    monkeypatch.setattr(measure_pair, "_read_slowly", sometimes_stale)
    monkeypatch.setattr(measure_pair, "CHURN_S", 0.3)
    met = reader(tmp_path, listener)._replaced()
    assert met.stale >= 1 and met.reads > met.stale
    assert met.not_recovered == met.torn == 0
