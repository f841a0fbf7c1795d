"""Scores responses with the function that the configuration names. A reward that fails is an error, never a zero."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from hpcrl.config.reward import RewardConfig
from hpcrl.errors import UserCodeError
from hpcrl.rewards import exact, gsm8k
from hpcrl.rewards.messages import Load, Scored, ToScore

SHOWN_OF_A_TEXT = 200


class Scorer(Protocol):
    """Scores one response after another."""

    def score(self, prompt: str, response: str, record: Mapping[str, Any]) -> float: ...

    def close(self) -> None: ...


class RewardFunction:
    """The run's reward function: one of hpcrl's in this process, a user's in a process that has no torch.

    Knows nothing of tokens and models. Called from one thread.
    """

    def __init__(self, reward: RewardConfig) -> None:
        self._scorer: Scorer
        if reward.function in BUILT_IN:
            self._scorer = BuiltIn(BUILT_IN[reward.function], reward.kwargs)
        else:
            self._scorer = UserProcess(reward)

    def score(
        self, prompts: Sequence[str], responses: Sequence[str], records: Sequence[Mapping[str, Any]]
    ) -> list[float]:
        """One finite score per response; `records` are the rows of the data set.

        Raises:
            UserCodeError: the function raised, took too long, died, or returned something that is no finite number.
        """
        rows = zip(prompts, responses, records, strict=True)
        return [self._scorer.score(prompt, response, record) for prompt, response, record in rows]

    def close(self) -> None:
        self._scorer.close()


class BuiltIn:
    """A function of hpcrl's, with its further arguments."""

    def __init__(self, function: Callable[..., float], kwargs: Mapping[str, Any]) -> None:
        self._function = function
        self._kwargs = kwargs

    def score(self, prompt: str, response: str, record: Mapping[str, Any]) -> float:
        return self._function(prompt, response, record, **self._kwargs)

    def close(self) -> None:
        pass


class UserProcess:
    """A user's function in a process of its own. Owns the process and its two pipes; never retries."""

    def __init__(self, reward: RewardConfig) -> None:
        self._function = reward.function
        self._timeout_s = reward.timeout_s
        theirs_to_read, requests = os.pipe()
        answers, theirs_to_write = os.pipe()
        self._requests, self._answers = os.fdopen(requests, "wb"), os.fdopen(answers, "rb", buffering=0)
        command = [sys.executable, "-m", "hpcrl.rewards.process"]
        self._process = subprocess.Popen(
            [*command, str(theirs_to_read), str(theirs_to_write), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs_to_read, theirs_to_write),
        )
        os.close(theirs_to_read)
        os.close(theirs_to_write)
        self._received = b""
        answer = self._ask(Load(reward.function, dict(reward.kwargs)), "while it was imported")
        if answer.error:
            self.close()
            raise self._failure(f"cannot be imported: {answer.error}", answer.traceback)

    def score(self, prompt: str, response: str, record: Mapping[str, Any]) -> float:
        sample = f"on row {record.get('id')!r}\nprompt: {_shown(prompt)}\nresponse: {_shown(response)}"
        answer = self._ask(ToScore(prompt, response, dict(record)), sample)
        if answer.error or answer.score is None:
            raise self._failure(f"failed {sample}\n{answer.error}", answer.traceback)
        return answer.score

    def close(self) -> None:
        """End the process; one that is still computing is killed."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()

    def _ask(self, question: Load | ToScore, where: str) -> Scored:
        try:
            self._requests.write(msgspec.json.encode(question) + b"\n")
            self._requests.flush()
            line = self._read_line(time.monotonic() + self._timeout_s)
        except (BrokenPipeError, EOFError):
            raise self._failure(f"ended its process ({_how_it_ended(self._process.wait())}) {where}") from None
        except TimeoutError:
            self._process.kill()
            raise self._failure(
                f"took longer than {self._timeout_s:g} s {where}\nMake it faster, or raise reward.timeout_s."
            ) from None
        return msgspec.json.decode(line, type=Scored)

    def _read_line(self, deadline: float) -> bytes:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while b"\n" not in self._received:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            chunk = self._answers.read(65536)
            if not chunk:
                raise EOFError
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _failure(self, what: str, traceback: str = "") -> UserCodeError:
        return UserCodeError(f"reward.function {self._function} {what}\n{traceback}".rstrip())


BUILT_IN: Mapping[str, Callable[..., float]] = {"gsm8k": gsm8k.score, "exact": exact.score}


def _how_it_ended(status: int) -> str:
    return f"exit code {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_OF_A_TEXT else f"{text[:SHOWN_OF_A_TEXT]}…")
