"""The probe: two processes on this machine as two nodes, and what becomes of one that is left alone."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from hpcrl.config.cluster import ClusterConfig
from hpcrl.doctor import probe as doctor_probe
from hpcrl.doctor.measure_nodes import read_results
from hpcrl.doctor.measure_pair import RACES
from hpcrl.doctor.peer import Hello
from hpcrl.doctor.probe import probe


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
        assert all(second is not None and second < 30 for seen in ring.seen for second in seen.seconds)
        assert [(race.how, race.one, race.none, race.both) for race in ring.races] == [
            (how, RACES, 0, 0) for how in ("link", "create", "mkdir")
        ]
        assert abs(ring.clock_ahead_s) < 5
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


def test_a_probe_listens_where_the_run_would(tmp_path):
    probe(tmp_path, 0, 1, cluster=ClusterConfig(interface="127.0.0.0/8", ports="24000-24999"))
    (node,) = read_results(tmp_path)
    hello = msgspec.json.decode((tmp_path / "hello-0.json").read_bytes(), type=Hello)
    assert (node.address, node.interface, node.complaint, node.others) == ("127.0.0.1", "lo", "", ())
    assert hello.address == "127.0.0.1" and 24000 <= hello.port <= 24999


def test_a_node_without_the_interface_says_what_it_has_and_is_measured_all_the_same(tmp_path):
    probe(tmp_path, 0, 1, cluster=ClusterConfig(interface="ib7"))
    (node,) = read_results(tmp_path)
    assert "cluster.interface = ib7" in node.complaint and "lo (127.0.0.1)" in node.complaint
    assert node.address and node.disk.free_bytes


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
    thread.join(60)
    assert not thread.is_alive()
