"""The probe: two processes on this machine as two nodes, and what it finds on filesystems that misbehave."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from hpcrl.doctor import peer as doctor_talk
from hpcrl.doctor import probe as doctor_probe
from hpcrl.doctor.measure_nodes import read_results
from hpcrl.doctor.measurements import PairMeasurements
from hpcrl.doctor.peer import Asker, Attempt, Churn, Clock, Hello, Listener, Make, PeerReport
from hpcrl.doctor.probe import RACES, _Pair, probe


def probes(folder: Path, count: int, **absent: int) -> list[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "hpcrl.doctor.probe", str(folder), "--count", str(count), "--index"]
    return [subprocess.Popen([*command, str(index)]) for index in range(count)]


@pytest.mark.parametrize("count", [2, 3])
def test_probes_measure_each_other(tmp_path, count):
    for process in probes(tmp_path, count):
        assert process.wait(60) == 0
    nodes = read_results(tmp_path)
    assert [node.index for node in nodes] == list(range(count))
    assert len({node.software.code for node in nodes}) == 1
    for node in nodes:
        assert node.absent == ()
        assert all(pair.connect_s is not None and not pair.error for pair in node.pairs)
        assert {pair.other for pair in node.pairs} == set(range(count)) - {node.index}
        (ring,) = [pair for pair in node.pairs if pair.seen]
        assert ring.other == (node.index + 1) % count
        assert [seen.how for seen in ring.seen] == ["list", "open", "append"]
        assert all(second is not None and second < 5 for seen in ring.seen for second in seen.seconds)
        assert [(race.how, race.one, race.none, race.both) for race in ring.races] == [
            (how, RACES, 0, 0) for how in ("link", "create", "mkdir")
        ]
        assert abs(ring.clock_ahead_s) < 0.1
        assert ring.replaced.reads > 10 and ring.replaced.torn == ring.replaced.stale == 0


def test_one_node_alone_measures_itself(tmp_path):
    probe(tmp_path, 0, 1)
    (node,) = read_results(tmp_path)
    assert node.pairs == () and node.absent == ()


def test_a_probe_whose_peer_does_not_come_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_probe, "GREETING_DEADLINE_S", 0.3)
    probe(tmp_path, 0, 2)
    (node,) = read_results(tmp_path)
    assert node.absent == (1,)


def test_a_probe_whose_peer_cannot_be_reached_says_where(monkeypatch, tmp_path):
    (tmp_path / "hello-1.json").write_bytes(msgspec.json.encode(Hello(1, "127.0.0.1", 1, "x")))
    (tmp_path / "result-1.json").write_bytes(b"{}")
    probe(tmp_path, 0, 2)
    (tmp_path / "result-1.json").unlink()
    (node,) = read_results(tmp_path)
    (pair,) = node.pairs
    assert pair.connect_s is None
    assert pair.connect_error == "127.0.0.1:1: Connection refused"


def test_without_the_folder_a_probe_ends_and_makes_none(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(doctor_probe, "FOLDER_DEADLINE_S", 0.2)
    assert doctor_probe.main([str(tmp_path / "gone")]) == 1
    assert str(tmp_path / "gone") in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_probe_leaves_when_its_folder_is_cleared_away(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "hello-1.json").write_bytes(msgspec.json.encode(Hello(1, "127.0.0.1", 1, "x")))
    thread = threading.Thread(target=probe, args=(folder, 0, 2))
    thread.start()
    while not (folder / "result-0.json").exists():
        time.sleep(0.02)
    os.system(f"rm -rf {folder}")
    thread.join(10)
    assert not thread.is_alive()


# A listener and a reader in one process, and a filesystem between them that misbehaves


@pytest.fixture
def listener(tmp_path):
    made = Listener(1, "127.0.0.1", tmp_path)
    yield made
    made.close()


def reader(folder: Path, listener: Listener, deadline_s: float = 5.0) -> _Pair:
    return _Pair(folder, "0-1", 0, Asker(listener.hello), deadline_s)


def measured(folder: Path, listener: Listener) -> PairMeasurements:
    return reader(folder, listener).measure(PairMeasurements(other=1, connect_s=0.0))


class LateListener(Listener):
    """What it makes is seen a while after it has said so."""

    LATE_S = 0.4

    def _do(self, wish):
        if isinstance(wish, Make):
            threading.Timer(self.LATE_S, super()._do, (wish,)).start()
            return True
        return super()._do(wish)


@pytest.mark.parametrize("how", ["list", "open"])
def test_the_time_until_a_file_is_seen_is_measured(monkeypatch, tmp_path, how):
    monkeypatch.setattr(doctor_probe, "SEEN_ROUNDS", 2)
    late = LateListener(1, "127.0.0.1", tmp_path)
    seen = reader(tmp_path, late)._seen(how)
    assert all(0.3 < second < 1.0 for second in seen.seconds) and len(seen.seconds) == 2


def test_what_is_never_seen_is_tried_once(tmp_path):
    late = LateListener(1, "127.0.0.1", tmp_path)
    assert reader(tmp_path, late, 0.1)._seen("list").seconds == (None,)


def test_a_name_that_two_can_make_is_found_out(monkeypatch, tmp_path, listener):
    both = {"link": lambda path, index: None, "create": doctor_talk.ATTEMPTS["create"], "mkdir": _refuse}
    monkeypatch.setattr(doctor_talk, "ATTEMPTS", both)
    link, create, mkdir = measured(tmp_path, listener).races
    assert (link.one, link.both) == (0, RACES)
    assert (create.one, create.both) == (RACES, 0)
    assert mkdir.failed == "Operation not permitted"


def _refuse(path: Path, index: int) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_stale_handles_are_counted_and_tried_again(monkeypatch, tmp_path, listener):
    real = doctor_probe._read_slowly
    calls = iter(range(10**9))

    def sometimes_stale(path: Path) -> bytes:
        if next(calls) % 10 == 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path)

    monkeypatch.setattr(doctor_probe, "_read_slowly", sometimes_stale)
    monkeypatch.setattr(doctor_probe, "CHURN_S", 0.3)
    met = reader(tmp_path, listener)._replaced()
    assert met.stale >= 1 and met.reads > met.stale
    assert met.not_recovered == met.torn == 0


def test_a_torn_content_is_recognised():
    assert doctor_talk.whole(b"a" * 4096)
    assert not doctor_talk.whole(b"a" * 4095)
    assert not doctor_talk.whole(b"a" * 2048 + b"b" * 2048)


# What a listener does not do


def test_a_stranger_gets_no_answer(listener):
    stranger = Asker(Hello(1, "127.0.0.1", listener.hello.port, "guessed"))
    with pytest.raises(ConnectionResetError):
        stranger.ask(Clock())


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "..", "", "a/b"])
@pytest.mark.parametrize(
    "wish", [Make, doctor_talk.Append, lambda name: Attempt("create", name), lambda n: Churn(n, 1)]
)
def test_nothing_outside_the_folder_is_touched(tmp_path, listener, name, wish):
    answer = Asker(listener.hello).ask(wish(name))
    assert not answer.done and answer.error
    assert not (tmp_path.parent / "outside").exists()


def test_a_reader_whose_peer_dies_says_so(tmp_path, listener):
    asker = Asker(listener.hello)
    asker._socket.shutdown(2)
    with pytest.raises(OSError):
        asker.ask(Clock())
    assert isinstance(Asker(listener.hello).ask(Clock()), PeerReport), "the listener goes on"
