"""A worker's side of the processes of a user's reward function. It never waits, and never tries again."""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from hpcrl.processes import oom_kills
from hpcrl.rewards.messages import AHEAD, NONCE_BYTES, Load, Reply, Takes, ToScore
from hpcrl.rewards.response import Response

IMPORT_S = 120.0
"""Importing the function's file may take this long where `reward.timeout_s`, which is a response's, is shorter."""
SPARE_S = 5.0
"""What an asynchronous function, which times itself, is given besides."""
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Asked:
    """Responses on their way, by their numbers in the batch; none for the import."""

    numbers: tuple[int, ...]
    responses: tuple[Response, ...]


IDLE = Asked((), ())
"""A process that ends while nothing is asked of it."""


class UserProcess:
    """The processes of a function, and the socket to the one that answers for it."""

    def __init__(self, order: Load) -> None:
        self._order = order
        self._oom_kills = oom_kills()
        self._nonce = secrets.token_hex(NONCE_BYTES // 2).encode()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        ahead = max(AHEAD, order.concurrency)
        command = [sys.executable, "-m", "hpcrl.rewards.process", *map(str, (theirs.fileno(), os.getpid(), ahead))]
        with theirs:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        self._to_send = self._nonce + _line(order)
        self._received = b""
        self._number = 1
        self._since = time.monotonic()
        self._asked: deque[Asked] = deque([IDLE])
        self.takes: Takes | None = None
        """How the function is called, once it has been imported."""

    @property
    def asked(self) -> Sequence[Asked]:
        """What has no answer yet, oldest first."""
        return self._asked

    @property
    def room(self) -> int:
        """Lines that it takes now."""
        if self.takes is None:
            return 0
        ahead = 2 if self.takes.several else AHEAD
        return max(ahead, self._order.concurrency if self.takes.awaited else 0) - len(self._asked)

    @property
    def limit_s(self) -> float:
        """How long the oldest line may take."""
        return self._order.timeout_s if self.takes is not None else max(IMPORT_S, self._order.timeout_s)

    @property
    def left_s(self) -> float:
        """How much of that is left; the oldest line is being worked on since the answer to the one before it came."""
        spare_s = SPARE_S if self.takes is not None and self.takes.awaited else 0.0
        return self._since + self.limit_s + spare_s - time.monotonic()

    @property
    def oom_kills(self) -> int:
        """What the kernel has killed in this job since the process began."""
        return oom_kills() - self._oom_kills

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_to_send(self) -> bool:
        return bool(self._to_send)

    def ask(self, asked: Asked) -> None:
        """Have it score these."""
        assert self.takes is not None
        if not self._asked:
            self._since = time.monotonic()
        self._asked.append(asked)
        self._number += 1
        tokens = self.takes.tokens
        sent = [it if tokens else msgspec.structs.replace(it, tokens=()) for it in asked.responses]
        self._to_send += _line(ToScore(self._number, sent))

    def send(self) -> None:
        """What the socket takes now. Whether anybody reads it is seen when the answer is missing."""
        with suppress(OSError):
            self._to_send = self._to_send[self._socket.send(self._to_send) :]

    def receive(self) -> list[tuple[Asked, Reply]]:
        """The answers that have come, each with what was asked; the last says so where the process has ended.

        What it had been asked then, and has not answered, is still in `asked`.
        """
        try:
            while chunk := self._socket.recv(CHUNK_BYTES):
                self._received += chunk
            ended = True
        except BlockingIOError:
            ended = False
        except ConnectionResetError:
            ended = True
        *lines, self._received = self._received.split(b"\n")
        answers = [
            msgspec.json.decode(line.removeprefix(self._nonce), type=Reply)
            for line in lines
            if line.startswith(self._nonce)
        ]
        if ended and not any(answer.ended is not None for answer in answers):
            answers.append(Reply(ended=self._process.wait()))
        found = []
        for answer in answers:
            over = answer.broken or answer.ended is not None
            if not self._asked and not over:
                continue
            found.append(((self._asked[0] if over else self._asked.popleft()) if self._asked else IDLE, answer))
            self._since = time.monotonic()
            self.takes = answer.takes or self.takes
            if over:
                break
        return found

    def close(self) -> None:
        """End the processes; one that is still computing is killed."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._socket.close()


def _line(question: Load | ToScore) -> bytes:
    return msgspec.json.encode(question) + b"\n"
