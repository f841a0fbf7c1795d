"""A service is a real process: it answers, hangs, fails, dies; its token is in no message and in no file."""

import contextlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrl.config.reward import RewardConfig
from hpcrl.errors import ConfigurationError, UserCodeError
from hpcrl.rewards.response import Response
from hpcrl.rewards.service import Service

SERVER = """
import http.server, json, os, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked = 0

    def do_POST(self):
        cls = type(self)
        cls.asked += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = [it["response"] for it in body["responses"]]
        if "dies" in texts:
            os._exit(1)
        if "hangs" in texts:
            time.sleep(60)
        if "drips" in texts:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(600):
                self.wfile.write(b" ")
                time.sleep(0.1)
        if "busy" in texts and cls.asked < 3:
            return self.say(503, {"error": "loading"})
        if "never" in texts:
            return self.say(500, {"error": "always"})
        if "refused" in texts:
            return self.say(401, {"error": "token " + self.headers["Authorization"]})
        scores = [self.score(it) for it in body["responses"]]
        reply = {"short": {"scores": []}, "other": {"points": [1]}}.get(texts[0], {"scores": scores})
        self.say(200, reply)

    def score(self, it):
        if it["response"] == "none":
            return None
        if it["response"] == "token":
            return float(self.headers["Authorization"] == "Bearer s3cret")
        if it["response"] == "rich":
            return {"scores": [[1, 0.5], [4, 1]], "seen": it["row"]["id"] == "r" and it["finished"]}
        return {"score": len(it["response"]), "asked": type(self).asked}

    def say(self, status, reply):
        content = json.dumps(reply).encode() if reply is not None else b"no json"
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
Serve = Callable[..., tuple[subprocess.Popen[str], int]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a service; its process and port."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    started: list[subprocess.Popen[str]] = []

    def start(port: int | None = None) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-c", SERVER, str(port or _unused())]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        return started[-1], int(started[-1].stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _unused() -> int:
    """A port that stays free while its service is dead: the system gives such numbers to nobody by itself."""
    while True:
        port = random.randrange(30_000, 32_000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


def service(port: int, token_variable: str = "", **settings: Any) -> Service:
    component = {"service": f"http://127.0.0.1:{port}/score", "token_variable": token_variable}
    config = RewardConfig(components={"judge": component}, **({"timeout_s": 20.0} | settings))
    return Service("reward.components.judge.service", config.parts["judge"], config, waits_s=(0.01, 0.02, 0.05))


def responses(*texts: str) -> list[Response]:
    return [Response("p", text, {"id": "r", "answer": "x"}) for text in texts]


def test_batches_are_scored_in_the_order_of_the_responses(serve: Serve) -> None:
    _, port = serve()
    texts = ["x" * (i % 11) for i in range(50)]
    found = service(port, batch_size=8, concurrency=3).score(responses(*texts))
    assert [it.score for it in found] == [float(i % 11) for i in range(50)]
    assert max(it.numbers["asked"] for it in found) == 7


def test_a_service_returns_whatever_a_function_may(serve: Serve) -> None:
    none, rich = service(serve()[1]).score(responses("none", "rich"))
    assert none.score is None and not none.dropped
    assert (rich.score, rich.places, rich.numbers) == (1.5, ((1, 0.5), (4, 1.0)), {"seen": 1.0})


def test_a_service_that_is_busy_is_asked_again(serve: Serve) -> None:
    (found,) = service(serve()[1]).score(responses("busy"))
    assert (found.score, found.numbers["asked"]) == (4.0, 3.0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("never", r"it answered 500: .*always.*, the last of 4 times"),
        ("short", "expected a list of 1"),
        ("other", 'KeyError: .scores.; expected {"scores"'),
    ],
)
def test_a_service_that_fails_is_an_error_that_names_it(serve: Serve, text: str, what: str) -> None:
    _, port = serve()
    with pytest.raises(
        UserCodeError, match=rf"judge\.service http://127.0.0.1:{port}/score failed on row 'r'[\s\S]*{what}"
    ):
        service(port).score(responses(text))


@pytest.mark.parametrize("text", ["hangs", "drips"])
def test_a_service_that_never_ends_is_given_up_at_its_limit(serve: Serve, text: str) -> None:
    started = time.monotonic()
    with pytest.raises(UserCodeError, match=r"took longer than reward.timeout_s = 0.3, the last of 4 times"):
        service(serve()[1], timeout_s=0.3).score(responses(text))
    assert time.monotonic() - started < 30


def test_what_a_service_could_not_score_is_dropped_where_that_is_said(serve: Serve) -> None:
    found = service(serve()[1], batch_size=1, on_error="drop").score(responses("a", "never", "bb"))
    assert [(it.score, it.dropped) for it in found] == [(1.0, False), (None, True), (2.0, False)]


def test_a_service_that_dies_is_an_error_and_one_that_comes_back_is_asked_again(serve: Serve) -> None:
    process, port = serve()
    client = service(port)
    with pytest.raises(UserCodeError, match=r"(RemoteProtocol|Read|Connect)Error.*the last of 4 times\. Is it"):
        client.score(responses("dies"))
    process.wait()
    serve(port)
    assert client.score(responses("back"))[0].score == 4.0


def test_a_service_that_is_killed_and_begun_anew_meanwhile_is_not_noticed(serve: Serve) -> None:
    process, port = serve()
    client = service(port)
    client._waits_s = (0.2,) * 50
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(1)\n{SERVER}", str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.score(responses("back"))[0].score == 4.0
    finally:
        again.kill()
        again.communicate()


def test_the_token_is_sent_and_shown_nowhere(serve: Serve, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    _, port = serve()
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret")
    client = service(port, "JUDGE_TOKEN", on_error="drop")
    assert client.score(responses("token"))[0].score == 1.0
    assert client.score(responses("refused"))[0].dropped
    told = capfd.readouterr().err
    assert "it answered 401" in told and "Bearer …" in told and "s3cret" not in told


def test_a_token_that_is_not_there_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match=r"reward\.components\.judge\.token_variable = JUDGE_TOKEN, but"):
        service(1, "JUDGE_TOKEN")
