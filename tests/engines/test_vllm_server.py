"""What is said to a server, and what it does when its worker goes or speaks out of turn. Its engine is made up."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hpcrl.config.generation import GenerationConfig
from hpcrl.engines.servers import serve_vllm
from hpcrl.engines.servers.ask_vllm import Connection, LostServerError
from hpcrl.engines.servers.rests import Asked
from hpcrl.engines.servers.serve_vllm import (
    FromServer,
    Generate,
    Hello,
    Load,
    Loaded,
    Refused,
    Response,
    Server,
    Sleep,
    Welcome,
    receive,
    send,
)
from hpcrl.engines.servers.vllm_weights import arriving, writing
from hpcrl.placement.servers import WHY
from hpcrl.workers.host import nobody_is_told


class MadeUp:
    """An engine that answers with the seeds, and remembers."""

    version = "0.32.9"

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.loads = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.given_up = threading.Event()

    def load(self, folder: str, files: Sequence[str]) -> bool:
        self.loads += 1
        come = [path.name for path in arriving(Path(folder), files)]
        self.did.append(("load", come))
        if "bad" in come:
            raise RuntimeError("no such weights")
        return len(come) == len(files)

    def sleep(self, level: int) -> None:
        self.did.append(("sleep", level))

    def generate(self, wanted: Generate, unwanted: Callable[[], bool]) -> Iterator[Response]:
        self.did.append(wanted)
        while not self.goes_on.wait(0.01):
            if unwanted():
                self.given_up.set()
                return
        for index, seed in reversed(list(enumerate(wanted.seeds))):
            tokens = np.array([seed % 2**16, 7], np.int32)
            yield Response(index, tokens.tobytes(), np.array([-0.5, -1.5]).tobytes(), index == 0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, MadeUp, threading.Thread]]:
    """A server's door, its engine and its thread, which ends when its engine fails."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "door"))
    listener.listen(4)
    engine = MadeUp()

    def serve() -> None:
        try:
            Server(engine, listener).serve()  # type: ignore[arg-type]
        except RuntimeError:
            listener.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield tmp_path / "door", engine, thread
    engine.goes_on.set()


def raw(door: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    made.connect(str(door))
    return made


Served = tuple[Path, MadeUp, threading.Thread]


def test_responses_are_those_of_their_prompts_in_whatever_order_they_come(served: Served) -> None:
    door, engine, _ = served
    connection = Connection(door, 0, nobody_is_told)
    config = GenerationConfig(max_new_tokens=5, min_new_tokens=1, temperature=0.5, top_k=3, top_p=0.9)
    prompts = [np.array([1, 2], np.int64), np.array([3], np.int32)]
    made = connection.generate(Asked(prompts, [2**64 - 2, 5], [5, 3], [1, 0]), config, [9])
    assert [tokens.tolist() for tokens in made.tokens] == [[2**16 - 2, 7], [5, 7]]
    assert made.tokens[0].dtype == np.int32 and made.logprobs[0].dtype == np.float32
    assert made.logprobs[1].tolist() == [-0.5, -1.5] and made.finished == [True, False]
    (wanted,) = engine.did
    assert (
        wanted.seeds == (-2, 5)
        and (wanted.limits, wanted.least) == ((5, 3), (1, 0))
        and wanted.prompts[0] == np.array([1, 2], np.int32).tobytes()
    )
    assert (wanted.temperature, wanted.top_k, wanted.top_p, wanted.eos_token_ids) == (0.5, 3, 0.9, (9,))
    greedy = GenerationConfig(greedy=True, top_k=3, temperature=0.5)
    connection.generate(Asked(prompts, [2**64 - 1, 5], [5, 5], [0, 0]), greedy, [9])
    assert engine.did[1].seeds[0] == 0, "-1 is no seed to vLLM"
    assert (engine.did[1].temperature, engine.did[1].top_k) == (0.0, 0)


def test_weights_are_known_by_their_digest_until_they_are_forgotten(served: Served, tmp_path: Path) -> None:
    door, engine, _ = served
    first = Connection(door, 0, nobody_is_told)
    first.load(tmp_path, ["one"], "abc", (tmp_path / "one").touch)
    first.sleep(forget=False)
    first.close()
    second = Connection(door, 1, nobody_is_told)
    assert second.digest == "abc"
    second.sleep(forget=True)
    assert second.digest == ""
    assert Connection(door, 2, nobody_is_told).digest == ""
    assert engine.did == [("load", ["one"]), ("sleep", 1), ("sleep", 2)]


def test_a_newer_attempt_takes_its_place_in_the_middle_of_a_generation(served: Served) -> None:
    door, engine, _ = served
    engine.goes_on.clear()
    older = raw(door)
    send(older, Hello(0))
    assert isinstance(receive(older, FromServer), Welcome)
    send(older, Generate((b"\x01\0\0\0",), (1,), (4,), (0,), 1.0, 0, 1.0, ()))
    while not engine.did:
        time.sleep(0.01)
    newer = Connection(door, 1, nobody_is_told)
    assert engine.given_up.wait(10)
    with pytest.raises((EOFError, OSError)):
        receive(older, FromServer)
    engine.goes_on.set()
    assert len(newer.generate(Asked([np.array([1])], [3], [4], [0]), GenerationConfig(), []).tokens) == 1
    with pytest.raises(LostServerError, match="Attempt 1 is served"):
        Connection(door, 0, nobody_is_told)


def test_one_that_does_nothing_when_it_is_asked_is_lost_and_nobody_takes_it_over(served: Served) -> None:
    door, engine, _ = served
    engine.goes_on.clear()
    connection = Connection(door, 0, nobody_is_told, patience_s=0.2)
    with pytest.raises(LostServerError, match=r"it has done nothing for 0\.2 s"):
        connection.generate(Asked([np.array([1])], [3], [4], [0]), GenerationConfig(), [])
    assert door.with_name(WHY).read_text() == "it has done nothing for 0.2 s"


def test_what_a_worker_left_is_dropped_when_it_goes(served: Served) -> None:
    door, engine, _ = served
    engine.goes_on.clear()
    worker = raw(door)
    send(worker, Hello(0))
    assert isinstance(receive(worker, FromServer), Welcome)
    send(worker, Generate((b"\x01\0\0\0",), (1,), (4,), (0,), 1.0, 0, 1.0, ()))
    while not engine.did:
        time.sleep(0.01)
    worker.close()
    assert engine.given_up.wait(10)
    engine.goes_on.set()
    assert Connection(door, 0, nobody_is_told).version == "0.32.9"


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 8,
        struct.pack("<Q", 3) + b"abc",
        struct.pack("<Q", 1 << 62),
        msgspec.msgpack.encode({"type": "Load", "folder": 3}),
    ],
)
def test_who_says_what_is_nothing_is_sent_away(served: Served, said: bytes) -> None:
    door, engine, _ = served
    for greeting in (b"", Hello(0)):
        worker = raw(door)
        if greeting:
            send(worker, greeting)
            receive(worker, FromServer)
        worker.sendall(said)
        worker.shutdown(socket.SHUT_WR)
        with pytest.raises((EOFError, OSError, AssertionError)):
            answer = receive(worker, FromServer)
            assert not isinstance(answer, Refused)
    assert engine.did == []
    assert Connection(door, 0, nobody_is_told).version == "0.32.9"


def test_a_stranger_is_not_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another user, whom the folder would not let in either."""
    door, _, _ = served
    monkeypatch.setattr(serve_vllm.os, "getuid", lambda: 12345)
    with pytest.raises(LostServerError, match=r"or a stranger|without a word"):  # before or after our greeting
        Connection(door, 0, nobody_is_told)


def test_what_an_engine_does_not_survive_is_told_before_it_ends(served: Served, tmp_path: Path) -> None:
    door, _, thread = served
    connection = Connection(door, 0, nobody_is_told)
    with pytest.raises(LostServerError, match="RuntimeError: no such weights"):
        connection.load(tmp_path, ["bad"], "abc", (tmp_path / "bad").touch)
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(LostServerError):
        connection.generate(Asked([np.array([1])], [1], [4], [0]), GenerationConfig(), [])
    with pytest.raises(LostServerError):
        Connection(door, 1, nobody_is_told)


def test_weights_under_another_name_than_they_were_given_are_refused(served: Served, tmp_path: Path) -> None:
    door, _, _ = served
    connection = Connection(door, 0, nobody_is_told)
    with writing(tmp_path):
        send(connection._socket, Load(str(tmp_path), (), "one"))
    assert receive(connection._socket, FromServer) == Loaded("one", 1)
    send(connection._socket, Sleep(1))
    with pytest.raises(LostServerError, match="it has loaded one, and was given two"):
        connection.load(tmp_path, [], "two", lambda: None)


def test_weights_that_were_given_up_are_nobodys(served: Served, tmp_path: Path) -> None:
    """The server goes on; what it has now is to be replaced before it makes anything."""
    door, engine, _ = served

    def give_up() -> None:
        while engine.loads < 2:
            time.sleep(0.001)
        raise OSError("no room")

    first = Connection(door, 0, nobody_is_told)
    first.load(tmp_path, ["one"], "abc", (tmp_path / "one").touch)
    with pytest.raises(OSError, match="no room"):
        first.load(tmp_path, ["one", "two"], "def", give_up)
    first.close()
    second = Connection(door, 1, nobody_is_told)
    assert second.digest == ""
    second.load(tmp_path, ["one"], "ghi", lambda: None)
    assert engine.did == [("load", ["one"]), ("load", ["one"]), ("load", ["one"])]
    assert Connection(door, 2, nobody_is_told).digest == "ghi"


def test_a_frame_too_long_to_be_meant_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _theirs = socket.socketpair()
    monkeypatch.setattr(serve_vllm, "LONGEST_FRAME", 8)
    with pytest.raises(ValueError, match="is longer than 8"):
        send(ours, Load("a long folder", (), "abc"))
