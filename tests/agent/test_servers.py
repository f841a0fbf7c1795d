"""The servers of a node: theirs is a folder in shared memory, they are taken over where they serve alike, and they die
with their agent. Their vLLM is a stand-in: what it computes is not asked for here."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from support.chaos import create_run
from support.hosts import write_task
from support.serving import ROOT, served, servers_alive, shared, stand_in_python

from hpcrl.agent.compile_caches import CompileCaches
from hpcrl.agent.gpus import CPU_WORKER, DeviceBinding
from hpcrl.agent.servers import PREFIX, Server, Servers, Where
from hpcrl.agent.starter import Starter
from hpcrl.agent.zygote import Zygote
from hpcrl.engines.servers.ask_vllm import Connection, LostServerError
from hpcrl.event_log import EventLog
from hpcrl.placement.plan import plan_for
from hpcrl.placement.servers import ServerPlan, servers_of
from hpcrl.processes import SHARED
from hpcrl.scratch import NEW_S, remove_abandoned
from hpcrl.wire.address import LOOPBACK
from hpcrl.wire.messages import StartWorkers
from hpcrl.wire.zygote import WorkerArgs
from hpcrl.workers.host import nobody_is_told

HERE = Where(cuda=False, environment={}, cpus=(), threads=1)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def told(task: Path) -> ServerPlan:
    experiment = served(task, {"backend": "vllm", "python": stand_in_python(task)})
    (server,) = servers_of(plan_for(experiment, 1), experiment, (0,))
    return server


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


def test_what_is_told_the_same_is_taken_over_and_else_begins_anew(
    servers: Servers, told: ServerPlan, tmp_path: Path
) -> None:
    (first,) = servers.serve({told: HERE}, tmp_path / "a.jsonl")
    folder = first.socket.parent
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, first.socket, folder / "weights")}
    assert modes == {folder.name: 0o700, "socket": 0o600, "weights": 0o700}
    assert folder.parent == Path("/dev/shm") and folder.name.startswith(PREFIX)
    connection = Connection(first.socket, 3, nobody_is_told)
    assert (connection.version, connection.digest) == ("0.32.0", "")
    assert servers.serve({told: HERE}, tmp_path / "b.jsonl") == [first]
    with pytest.raises(LostServerError, match="Attempt 3 is served; this is an older one, or a stranger"):
        Connection(first.socket, 2, nobody_is_told)
    longer = replace(told, settings=(*(it for it in told.settings if it[0] != "slots"), ("slots", 9)))
    (second,) = servers.serve({longer: HERE}, tmp_path / "c.jsonl")
    assert second.pid != first.pid and not folder.exists() and not first.is_alive and not shared(first.pid).exists()
    assert (tmp_path / "a-0.out").exists() and (tmp_path / "c-0.out").exists()
    Connection(second.socket, 0, nobody_is_told)
    assert shared(second.pid).exists()
    os.kill(second.pid, signal.SIGKILL)
    while second.is_alive:
        time.sleep(0.01)
    (third,) = servers.serve({longer: HERE}, tmp_path / "d.jsonl")
    assert third.pid != second.pid and not shared(second.pid).exists()
    assert servers.serve({}, tmp_path / "e.jsonl") == []
    assert servers_alive() == [] and not third.socket.parent.exists()


def test_why_none_starts_is_left_for_those_who_come(told: ServerPlan, tmp_path: Path) -> None:
    settings = tuple((name, str(tmp_path) if name == "model" else value) for name, value in told.settings)
    server = Server(replace(told, settings=settings), HERE, tmp_path / "out")
    try:
        for _ in range(2):  # at the door, and later
            with pytest.raises(LostServerError, match=r"vLLM did not start: FileNotFoundError: .*config.json.*out\)"):
                Connection(server.socket, 0, nobody_is_told)
        assert "Traceback" in (tmp_path / "out").read_text()
    finally:
        server.close()


def test_one_that_has_said_why_it_ends_is_not_taken_over(servers: Servers, told: ServerPlan, tmp_path: Path) -> None:
    (first,) = servers.serve({told: HERE}, tmp_path / "a.jsonl")
    (tmp_path / "files").mkdir(mode=0o700)
    (strange := tmp_path / "files" / "strange.safetensors").touch(mode=0o600)
    with pytest.raises(LostServerError, match=r"strange|[Hh]eader"):
        Connection(first.socket, 0, nobody_is_told).load(strange.parent, [strange.name], "it", lambda: None)
    (second,) = servers.serve({told: HERE}, tmp_path / "b.jsonl")
    assert second is not first
    assert Connection(second.socket, 1, nobody_is_told).digest == ""


@pytest.mark.parametrize(("python", "finds"), [("", ["/ours"]), ("/another/python", [])])
def test_another_interpreter_is_not_led_to_the_packages_of_this_one(
    told: ServerPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, finds: list[str]
) -> None:
    given: dict[str, str] = {}

    def start(command: list[str], *, env: dict[str, str], **_: object) -> None:
        given.update(env)
        raise OSError("enough")

    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(OSError, match="enough"):
        Server(replace(told, python=python), HERE, tmp_path / "out")
    assert given["PYTHONPATH"].split(os.pathsep)[1:] == finds


def test_one_that_ends_without_a_word_is_told_of_as_that(tmp_path: Path) -> None:
    (folder := tmp_path / "of a server").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(1)
        greeted = threading.Thread(target=lambda: listener.accept()[0].close())  # with a greeting that nobody read
        greeted.start()
        with pytest.raises(LostServerError, match="it has ended without a word"):
            Connection(folder / "socket", 0, nobody_is_told)
        greeted.join()
    with pytest.raises(LostServerError, match="it has ended without a word"):  # refused
        Connection(folder / "socket", 0, nobody_is_told)


class Forked:
    """In the place of a zygote: the workers that it was to fork."""

    def __init__(self) -> None:
        self.caches, self.workers = CompileCaches({}), list[WorkerArgs]()

    def fork(self, worker: WorkerArgs) -> None:
        self.workers.append(worker)


def test_it_stays_between_attempts_and_ends_with_one_that_has_no_use_for_its_node(
    servers: Servers, task: Path, tmp_path: Path
) -> None:
    experiment = served(task, {"backend": "vllm", "python": stand_in_python(task)})
    run, forked = create_run(tmp_path / "run", experiment), Forked()
    starter = Starter(run, experiment, LOOPBACK, cast(Zygote, forked), (CPU_WORKER,), servers)
    plan, log = plan_for(experiment, 1), EventLog(tmp_path / "agent.jsonl")
    for _ in range(2):
        number = run.claim_attempt("s")
        run.files.publish(run.plan(number), plan.to_json(), "plan")
    for order in (StartWorkers(0, (0,)), StartWorkers(0, (), over=True), StartWorkers(1, (0,))):
        starter.start(order, log, "")
    first, second = forked.workers
    (door,) = first.servers.values()
    assert first.servers == second.servers and Path(door).exists()
    starter.start(StartWorkers(2, ()), log, "")
    assert not Path(door).exists() and servers_alive() == [] and len(forked.workers) == 2


def test_an_interpreter_that_is_not_there_is_an_error_of_the_system(told: ServerPlan, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Server(replace(told, python=str(tmp_path / "gone")), HERE, tmp_path / "out")


def test_a_server_computes_on_all_devices_of_its_part() -> None:
    bindings = [
        DeviceBinding("cuda:0", f"GPU-{i}", {"CUDA_VISIBLE_DEVICES": f"GPU-{i}", "A": "1"}, (2 * i, 2 * i + 1))
        for i in range(2)
    ]
    assert Where.of(bindings, 4) == Where(True, {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1", "A": "1"}, (0, 1, 2, 3), 4)


AGENT = f"""
import sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from pathlib import Path
import msgspec
from hpcrl.agent.servers import Server, Where
from hpcrl.placement.servers import ServerPlan
told = msgspec.json.decode(sys.argv[1], type=ServerPlan)
server = Server(told, Where(False, {{}}, (), 1), Path(sys.argv[2]))
print(server.pid, server.socket, flush=True)
time.sleep(100)
"""


def test_it_dies_with_its_agent_and_what_both_leave_goes_with_the_next(told: ServerPlan, tmp_path: Path) -> None:
    import msgspec

    command = [sys.executable, "-c", AGENT, msgspec.json.encode(told).decode(), str(tmp_path / "out")]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    pid, door = agent.stdout.readline().split()
    Connection(Path(door), 0, nobody_is_told)  # it has started, and says who it is
    assert servers_alive() == [int(pid)]
    folder, segment = Path(door).parent, shared(int(pid))
    agent.kill()
    agent.wait()
    deadline = time.monotonic() + 30
    while servers_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert servers_alive() == []
    assert folder.exists() and segment.exists()
    old = folder.stat().st_mtime - 2 * NEW_S
    os.utime(folder, (old, old))
    remove_abandoned(PREFIX, SHARED)
    assert not folder.exists() and not segment.exists()
