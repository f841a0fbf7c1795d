"""Scores responses with the function that the configuration names. A reward that fails is an error, never a zero."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from hpcrl.config.reward import RewardConfig
from hpcrl.errors import InternalError, UserCodeError
from hpcrl.processes import oom_kills
from hpcrl.rewards import exact, gsm8k
from hpcrl.rewards.messages import AHEAD, NONCE_BYTES, Load, Scored, ToScore

SHOWN_OF_A_TEXT = 200
IMPORT_S = 120.0
"""Importing the function's file may take this long where `reward.timeout_s`, which is a response's, is shorter."""


Row = tuple[str, str, Mapping[str, Any]]
"""prompt, response, row of the data set"""


class Scorer(Protocol):
    """Scores responses in their order."""

    def score(self, rows: Sequence[Row]) -> list[float]: ...

    def close(self) -> None: ...


class RewardFunction:
    """The run's reward function: one of hpcrl's in this process, a user's in processes that have no torch.

    Knows nothing of tokens and models. Called from one thread.
    """

    def __init__(self, reward: RewardConfig) -> None:
        self._scorer: Scorer
        if reward.function in BUILT_IN:
            self._scorer = BuiltIn(BUILT_IN[reward.function], reward.kwargs)
        else:
            self._scorer = UserFunction(reward)

    def score(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Mapping[str, Any]]
    ) -> list[float]:
        """One finite score per response; `records` are the rows of the data set.

        Raises:
            UserCodeError: the function raised, took too long, died, or returned something that is no finite number.
            InternalError: its process was killed twice on the same row.
        """
        return self._scorer.score(list(zip(prompts, responses, records, strict=True)))

    def close(self) -> None:
        self._scorer.close()


class BuiltIn:
    """A function of hpcrl's, with its further arguments."""

    def __init__(self, function: Callable[..., float], kwargs: Mapping[str, Any]) -> None:
        self._function = function
        self._kwargs = kwargs

    def score(self, rows: Sequence[Row]) -> list[float]:
        return [self._function(*row, **self._kwargs) for row in rows]

    def close(self) -> None:
        pass


class UserFunction:
    """A user's function. Whoever kills its process from outside (the kernel, for want of memory) has it begun anew."""

    def __init__(self, reward: RewardConfig) -> None:
        self._reward = reward
        self._process: UserProcess | None = None
        self.score([])

    def score(self, rows: Sequence[Row]) -> list[float]:
        """Each row is tried in two processes at most."""
        scores: list[float] = []
        killed_at: int | None = None
        while self._process is None or len(scores) < len(rows):
            try:
                self._process = self._process or UserProcess(self._reward)
                for score in self._process.scores(rows[len(scores) :]):
                    scores.append(score)
            except UserCodeError:
                self.close()
                raise
            except KilledError as error:
                self.close()
                if killed_at == len(scores):
                    raise InternalError(_describe(error)) from None
                killed_at = len(scores)
                print(f"{error}\nIt is tried once more, in a new process.", file=sys.stderr, flush=True)
        return scores

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None


class KilledError(Exception):
    """SIGKILL has ended the process of a reward function; `oom_kills` were the kernel's since that process began."""

    def __init__(self, what: str, oom_kills: int) -> None:
        self.oom_kills = oom_kills
        super().__init__(what)


class UserProcess:
    """The processes of a user's function, and the socket to the one that answers for it. Never retries."""

    def __init__(self, reward: RewardConfig) -> None:
        self._function = reward.function
        self._timeout_s = reward.timeout_s
        self._oom_kills = oom_kills()
        self._nonce = secrets.token_hex(NONCE_BYTES // 2).encode()
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "hpcrl.rewards.process", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        self._received = b""
        self._number = 1
        try:
            self._send(self._nonce + _line(Load(reward.function, dict(reward.kwargs))))
            answer = self._answer("while it was imported", max(IMPORT_S, self._timeout_s))
            if answer.error:
                raise self._failure(f"cannot be imported: {answer.error}", answer.traceback)
        except BaseException:
            self.close()
            raise

    def scores(self, rows: Sequence[Row]) -> Iterator[float]:
        """The score of each row, as it comes.

        Raises:
            KilledError: on the next row. The process is of no use any more.
        """
        asked = 0
        for done, (prompt, response, record) in enumerate(rows):
            if asked - done <= AHEAD // 2:
                self._ask(rows[asked : done + AHEAD])
                asked = done + AHEAD
            where = f"on row {record.get('id')!r}\nprompt: {_shown(prompt)}\nresponse: {_shown(response)}"
            answer = self._answer(where, self._timeout_s)
            if answer.error or answer.score is None:
                raise self._failure(f"failed {where}\n{answer.error}", answer.traceback)
            yield answer.score

    def close(self) -> None:
        """End the processes; one that is still computing is killed."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._socket.close()

    def _ask(self, rows: Sequence[Row]) -> None:
        lines = []
        for prompt, response, record in rows:
            self._number += 1
            lines.append(_line(ToScore(self._number, prompt, response, dict(record))))
        self._send(b"".join(lines))

    def _send(self, lines: bytes) -> None:
        """Whether anybody reads them is seen when the answer is missing."""
        with suppress(OSError):
            self._socket.sendall(lines)

    def _answer(self, where: str, limit_s: float) -> Scored:
        try:
            answer = msgspec.json.decode(self._read_line(time.monotonic() + limit_s), type=Scored)
        except (EOFError, ConnectionResetError):
            answer = Scored(ended=self._process.wait())
        except TimeoutError:
            self._process.kill()
            raise self._failure(
                f"took longer than {limit_s:g} s {where}\nMake it faster, or raise reward.timeout_s."
            ) from None
        if answer.ended == -signal.SIGKILL:
            what = f"The process of reward.function {self._function} was killed by SIGKILL {where}"
            raise KilledError(what, oom_kills() - self._oom_kills)
        if answer.ended is not None:
            raise self._failure(f"ended its process ({_how_it_ended(answer.ended)}) {where}")
        return answer

    def _read_line(self, deadline: float) -> bytes:
        """The next line that begins with the nonce, without it."""
        while True:
            line, newline, rest = self._received.partition(b"\n")
            if not newline:
                self._received += self._receive(deadline)
                continue
            self._received = rest
            if line.startswith(self._nonce):
                return line.removeprefix(self._nonce)

    def _receive(self, deadline: float) -> bytes:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = self._socket.recv(65536)
        self._socket.settimeout(None)
        if not chunk:
            raise EOFError
        return chunk

    def _failure(self, what: str, traceback: str = "") -> UserCodeError:
        return UserCodeError(f"reward.function {self._function} {what}\n{traceback}".rstrip())


BUILT_IN: Mapping[str, Callable[..., float]] = {"gsm8k": gsm8k.score, "exact": exact.score}


def _how_it_ended(status: int) -> str:
    return f"exit code {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_OF_A_TEXT else f"{text[:SHOWN_OF_A_TEXT]}…")


def _line(question: Load | ToScore) -> bytes:
    return msgspec.json.encode(question) + b"\n"


def _describe(last: KilledError) -> str:
    """The verdict of whoever counts what the kernel kills, if it was the kernel."""
    if not last.oom_kills:
        return f"{last}\nThis was the second time. Neither hpcrl nor a lack of memory in this job did it."
    return (
        f"{last}\nThis was the second time, and it is out of memory: the kernel has killed {last.oom_kills} processes "
        "of this job meanwhile. Let the function use less, or raise cluster.slurm.memory."
    )
