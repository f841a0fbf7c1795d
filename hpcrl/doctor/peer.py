"""What two probes say to each other over TCP: one asks, the other does it at once and answers.

A line of JSON each way. The asker knows the word that the other has put into the shared folder, where only this user
reads; who overhears it can make files with plain names in the doctor's folder, for the seconds that a probe lives.
"""

import contextlib
import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from hpcrl.doctor.measure_disk import make
from hpcrl.wire.address import Network, listen

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 90.0
CHURNED_BYTES = 4096


class Hello(msgspec.Struct, frozen=True):
    """hello-N.json: a probe → all others: where it listens, and the word that it answers to."""

    index: int
    address: str
    port: int
    word: str


class Clock(msgspec.Struct, frozen=True, tag=True):
    """What time is it?"""


class Make(msgspec.Struct, frozen=True, tag=True):
    """Make a file."""

    name: str


class Append(msgspec.Struct, frozen=True, tag=True):
    """Append a byte to a file."""

    name: str


class Attempt(msgspec.Struct, frozen=True, tag=True):
    """Try to be the one who makes this name."""

    how: str
    name: str


class Churn(msgspec.Struct, frozen=True, tag=True):
    """Replace a file by renaming, again and again; answered when it is there for the first time."""

    name: str
    seconds: float


Wish = Clock | Make | Append | Attempt | Churn


class Question(msgspec.Struct, frozen=True):
    """asking probe → answering probe."""

    word: str
    wish: Wish


class PeerReport(msgspec.Struct, frozen=True):
    """answering probe → asking probe. `done`: an attempt was successful; `error`: the system refused."""

    time: float
    done: bool = False
    error: str = ""


class Listener:
    """Answers the other probes from threads of its own until it is closed. Does only what Wish lists, in one folder."""

    def __init__(self, index: int, network: Network, folder: Path) -> None:
        self._folder = folder
        self._socket = listen(network)
        self.hello = Hello(index, network.host, self._socket.getsockname()[1], secrets.token_hex(16))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as lines, contextlib.suppress(OSError, msgspec.DecodeError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while line := lines.readline(4096):
                question = msgspec.json.decode(line, type=Question)
                if not hmac.compare_digest(question.word, self.hello.word):
                    return
                lines.write(msgspec.json.encode(self._answer(question.wish)) + b"\n")
                lines.flush()

    def _answer(self, wish: Wish) -> PeerReport:
        try:
            return PeerReport(time.time(), self._do(wish))
        except OSError as error:
            return PeerReport(time.time(), error=error.strerror or str(error))

    def _do(self, wish: Wish) -> bool:
        match wish:
            case Make(name):
                make(_inside(self._folder, name), b"x")
            case Append(name):
                with open(_inside(self._folder, name), "ab", buffering=0) as file:
                    file.write(b"x")
                    os.fsync(file.fileno())
            case Attempt(how, name):
                return attempt(how, _inside(self._folder, name), self.hello.index)
            case Churn(name, seconds):
                path = _inside(self._folder, name)
                _replace(path, 0)
                threading.Thread(target=_churn, args=(path, seconds), daemon=True).start()
        return True


class Asker:
    """One connection to another probe's listener."""

    def __init__(self, hello: Hello) -> None:
        self._word = hello.word
        self._socket = socket.create_connection((hello.address, hello.port), CONNECT_TIMEOUT_S)
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")

    def ask(self, wish: Wish, meanwhile: Callable[[], None] | None = None) -> PeerReport:
        """The answer; `meanwhile` is done while the other does its part. Raises OSError if the connection breaks."""
        self._socket.sendall(msgspec.json.encode(Question(self._word, wish)) + b"\n")
        if meanwhile is not None:
            meanwhile()
        line = self._lines.readline()
        if not line:
            raise ConnectionResetError("the other probe has closed the connection")
        return msgspec.json.decode(line, type=PeerReport)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def attempt(how: str, path: Path, index: int) -> bool:
    """Whether this process is told that it made the name."""
    try:
        ATTEMPTS[how](path, index)
    except FileExistsError:
        return False
    return True


def _link(path: Path, index: int) -> None:
    source = path.with_name(f"source-{index}-{path.name}")
    make(source)
    try:
        os.link(source, path, follow_symlinks=False)
    except OSError:
        # The reply to a link that succeeded can get lost: two names then.
        if os.stat(source).st_nlink != 2:
            raise


ATTEMPTS: Mapping[str, Callable[[Path, int], None]] = MappingProxyType(
    {"link": _link, "create": lambda path, index: make(path), "mkdir": lambda path, index: os.mkdir(path)}
)


def whole(content: bytes) -> bool:
    """Whether a reader of a replaced file has got one of its contents."""
    return len(content) == CHURNED_BYTES and len(set(content)) == 1


def _churn(path: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    number = 0
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            number += 1
            _replace(path, number)


def _replace(path: Path, number: int) -> None:
    draft = path.with_name(f"draft-of-{path.name}")
    draft.write_bytes(bytes([number % 256]) * CHURNED_BYTES)
    os.rename(draft, path)


def _inside(folder: Path, name: str) -> Path:
    if "/" in name or name in ("", ".", ".."):
        raise PermissionError(1, "not a plain name", name)
    return folder / name
