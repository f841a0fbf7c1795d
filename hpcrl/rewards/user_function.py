"""Scores responses with a user's function, in as many processes as the configuration says."""

import select
import signal
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from hpcrl.config.environment import EnvironmentConfig
from hpcrl.errors import HpcrlError, InternalError, KilledForMemoryError, UserCodeError
from hpcrl.rewards.messages import Load, Reply
from hpcrl.rewards.outcome import ErrorRule
from hpcrl.rewards.response import Response, Result, dropped, named_together
from hpcrl.rewards.user_process import Asked, UserProcess

WHILE_IMPORTED = "while it was imported"


class Calling(Protocol):
    """The section of a reward or an environment, as far as it says how its function is called."""

    @property
    def on_error(self) -> Literal["fail", "drop", "retry"]: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def processes(self) -> int: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def batch_size(self) -> int: ...


class UserFunction:
    """A user's function. Whoever kills a process from outside (the kernel, for want of memory) has it begun anew."""

    def __init__(
        self, key: str, function: str, kwargs: Mapping[str, Any], how: Calling, *, answers: bool = False
    ) -> None:
        """`answers`: it is an environment's, and returns answers, not scores."""
        self._named = f"{key} {function}"
        self._section = key.partition(".")[0]
        self._how = how
        self._rule = ErrorRule(how.on_error)
        self._order = Load(function, dict(kwargs), how.concurrency, how.timeout_s, answers)
        self._processes: list[UserProcess] = []
        self._killed_in_import = False
        self._work = _Work(())
        self.score(())

    def score(self, responses: Sequence[Response]) -> list[Result]:
        """A result for each.

        Raises:
            UserCodeError: the function raised, took too long, died, or returned something that is no score, and
                `on_error` does not say that such a response is dropped.
            InternalError: its process was killed twice on the same response.
        """
        self._work = _Work(responses)
        try:
            while len(self._processes) < self._how.processes:
                self._processes.append(UserProcess(self._order))
            while not self._work.is_done or any(it.takes is None for it in self._processes):
                self._deal()
                self._exchange()
        except BaseException:
            self.close()
            raise
        return [result for result in self._work.results if result is not None]

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.close()
        self._processes = []

    def _deal(self) -> None:
        """Give each process something to do, and the next thing too: one line a turn, so that all get some."""
        open_ = [process for process in self._processes if process.room > 0]
        while open_ and self._work.pending:
            for process in open_:
                takes = process.takes
                assert takes is not None
                if numbers := self._work.take(self._how.batch_size if takes.several else 1):
                    process.ask(Asked(numbers, tuple(self._work.responses[number] for number in numbers)))
            open_ = [process for process in open_ if process.room > 0]

    def _exchange(self) -> None:
        """Wait until something can be sent, has been answered, or has taken too long."""
        waiting = [process for process in self._processes if process.asked]
        left_s = max(0.001, min(process.left_s for process in waiting))
        sending = [process for process in waiting if process.has_to_send]
        readable, writable, _ = select.select(waiting, sending, [], left_s)
        for process in writable:
            process.send()
        for process in readable:
            for asked, answer in process.receive():
                self._take(process, asked, answer)
        for process in waiting:
            if process in self._processes and process.asked and process.left_s <= 0:
                self._restart(process, self._late(process.asked[0]))

    def _take(self, process: UserProcess, asked: Asked, answer: Reply) -> None:
        """Keep an answer, or do what has to be done about an error."""
        if answer.ended == -signal.SIGKILL:
            self._restart_killed(process, asked)
        elif answer.ended is not None:
            self._restart(process, self._failure(f"ended its process ({_how(answer.ended)}) {_where(asked)}"))
        elif answer.broken:
            self._restart(process, self._failure(f"failed {_where(asked)}\n{answer.error}"))
        elif answer.late:
            self._tried(asked, self._late(asked))
        elif answer.error:
            self._tried(asked, self._failure(_what(asked, answer), answer.traceback))
        else:
            for number, result in zip(asked.numbers, answer.results, strict=True):
                self._work.results[number] = result

    def _tried(self, asked: Asked, error: HpcrlError) -> None:
        """These have failed. Raises the error where it ends the run, as one of the import always does."""
        if not asked.numbers:
            raise error
        self._work.attempts.update(asked.numbers)
        if self._rule.again(error, max(self._work.attempts[number] for number in asked.numbers)):
            self._work.put_back(asked.numbers)
            return
        for number in asked.numbers:
            self._work.results[number] = dropped(error)

    def _restart(self, process: UserProcess, error: HpcrlError) -> None:
        """In the place of a process that is of no use any more; what it had been given is given to others."""
        if process.takes is None or process.asked:
            self._tried(process.asked[0], error)
        self._replace(process, list(process.asked)[1:])

    def _restart_killed(self, process: UserProcess, asked: Asked) -> None:
        """Try what a killed process was working on once more, in a new one."""
        what = f"The process of {self._named} was killed by SIGKILL {_where(asked)}"
        killed = set(asked.numbers or (-1,))
        if killed & self._work.killed:
            return self._restart(process, _twice(what, process.oom_kills))
        self._work.killed |= killed
        print(f"{what}\nIt is tried once more, in a new process.", file=sys.stderr, flush=True)
        return self._replace(process, process.asked)

    def _replace(self, process: UserProcess, unanswered: Sequence[Asked]) -> None:
        for asked in reversed(unanswered):
            self._work.put_back(asked.numbers)
        process.close()
        self._processes[self._processes.index(process)] = UserProcess(self._order)

    def _late(self, asked: Asked) -> UserCodeError:
        limit_s = self._processes[0].limit_s
        return self._failure(
            f"took longer than {limit_s:g} s {_where(asked)}\nMake it faster, or raise {self._section}.timeout_s."
        )

    def _failure(self, what: str, traceback: str = "") -> UserCodeError:
        return UserCodeError(f"{self._named} {what}\n{traceback}".rstrip())


def answering(role: str, settings: EnvironmentConfig) -> UserFunction:
    """The function of an environment. Raises UserCodeError where it cannot be imported or called."""
    assert settings.function is not None, "without a function there is no call of the role"
    return UserFunction(f"{role}.function", settings.function, settings.kwargs, settings, answers=True)


class _Work:
    """The responses of one batch, what is still to be done of them, and their results."""

    def __init__(self, responses: Sequence[Response]) -> None:
        self.responses = responses
        self.pending = deque(range(len(responses)))
        self.results: list[Result | None] = [None] * len(responses)
        self.attempts: Counter[int] = Counter()
        self.killed: set[int] = set()
        """What a killed process was working on; -1 is the import."""

    @property
    def is_done(self) -> bool:
        return all(result is not None for result in self.results)

    def take(self, count: int) -> tuple[int, ...]:
        """The next numbers, at most so many."""
        return tuple(self.pending.popleft() for _ in range(min(count, len(self.pending))))

    def put_back(self, numbers: Sequence[int]) -> None:
        self.pending.extendleft(reversed(numbers))


def _what(asked: Asked, answer: Reply) -> str:
    if asked.numbers:
        return f"failed {_where(asked)}\n{answer.error}"
    return f"cannot be {'called' if answer.unusable else 'imported'}: {answer.error}"


def _where(asked: Asked) -> str:
    if not asked.numbers:
        return WHILE_IMPORTED
    return named_together(asked.responses)


def _how(status: int) -> str:
    return f"exit code {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


def _twice(what: str, oom_kills: int) -> InternalError:
    """The verdict of whoever counts what the kernel kills, if it was the kernel."""
    if not oom_kills:
        return InternalError(
            f"{what}\nThis was the second time. Neither hpcrl nor a lack of memory in this job did it."
        )
    return KilledForMemoryError(
        f"{what}\nThis was the second time, and it is out of memory: the kernel has killed {oom_kills} processes "
        "of this job meanwhile. Let the function use less, or raise cluster.slurm.memory."
    )
