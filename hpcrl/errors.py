"""Exit codes and the errors that carry them. A message names the value, the expectation and the knob to turn."""

import dataclasses
import errno
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Literal


class ExitCode(IntEnum):
    """What a process of a run tells whoever started it (docs/architecture.md, "Exit codes")."""

    DONE = 0
    CONFIGURATION = 64
    DATA = 65
    USER_CODE = 66
    INTERNAL = 70
    REQUEUE = 75
    PREEMPTED = 76
    NEVER_REQUEUE = 93


SHOWN_RANKS = 8


def advised(text: str, advice: str) -> str:
    """A message: what is wrong, then what to do about it, on a line of its own where the text has several."""
    return f"{text}\n{advice}" if advice and "\n" in text else f"{text} {advice}".rstrip()


@dataclass(frozen=True)
class Problem:
    """What is wrong, the settings that it is about, and what to do: as text, the three together."""

    keys: tuple[str, ...]
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return advised(self.text, self.advice)


class HpcrlError(Exception):
    """An error whose message is meant for the user; `exit_code` says whose it is, `advice` what gets further."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(self, text: str, advice: str = "") -> None:
        self.advice: tuple[str, ...] = (advice,) if advice else ()
        super().__init__(advised(text, advice))


class ConfigurationError(HpcrlError):
    """All problems of a configuration, together; `advice` goes with a text that is no Problem."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, problems: Sequence[str | Problem], advice: str = "") -> None:
        self.found = tuple(it if isinstance(it, Problem) else Problem((), it, advice) for it in problems)
        self.problems = tuple(map(str, self.found))
        super().__init__("\n".join(self.problems))
        self.advice = tuple(problem.advice for problem in self.found if problem.advice)

    def about(self, key: str) -> Iterator[Problem]:
        """The problems as those of one setting."""
        return (dataclasses.replace(problem, keys=(key,)) for problem in self.found)


class DataError(HpcrlError):
    """A data set, tokenizer or base model on disk is not what the configuration says."""

    exit_code = ExitCode.DATA


class UserCodeError(HpcrlError):
    """A function of the user's (a reward, say) raised."""

    exit_code = ExitCode.USER_CODE


class InternalError(HpcrlError):
    """A promise of hpcrl's own is broken: digests differ in replay, a disk is full, a peer breaks protocol."""


class StoppedError(HpcrlError):
    """The run was asked to stop, or lost what it needs, and can be resumed."""

    exit_code = ExitCode.REQUEUE


class PeerLostError(HpcrlError):
    """Something that several ranks do together broke. It tells of a peer or of the way to it, never of this process.

    `number` counts what the ranks of `group` have begun together in the same unit of work, from 1; `rank` is where it
    was noticed.
    """

    exit_code = ExitCode.REQUEUE

    def __init__(self, group: Sequence[int], operation: str, number: int, rank: int, cause: BaseException) -> None:
        self.group = tuple(group)
        self.operation = operation
        self.number = number
        self.rank = rank
        ranks = str(list(group)) if len(group) <= SHOWN_RANKS else f"{group[0]} … {group[-1]}, {len(group)} in all,"
        text = f"{type(cause).__name__}: {cause}"
        super().__init__(f"{operation}, operation {number} of ranks {ranks} in this call, broke on rank {rank}: {text}")


class MissingExtraError(HpcrlError):
    """An optional package is not installed."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed.", f"Install it: pip install 'hpcrl[{extra}]'")


class KilledForMemoryError(InternalError):
    """The kernel has killed a process for want of memory."""


Nature = Literal["", "GPU memory", "host memory", "disk", "communication"]
"""What ran out, or broke, where an error says so; empty where its exit code says all."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_TELLS: tuple[tuple[re.Pattern[str], Nature], ...] = (
    (re.compile(r"CUDA(?: error:)? out of memory|^(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b", re.M), "GPU memory"),
    (re.compile(r"DefaultCPUAllocator: can't allocate|^(?:\w+\.)*_?(?:Array)?MemoryError\b", re.M), "host memory"),
    (re.compile(r"^OSError: \[Errno (?:28|122|27)\]", re.M), "disk"),
)
"""What errors say that libraries raise, or that another process has told of."""


def nature_of(error: BaseException | None) -> Nature:
    """By the error, or the first of those that it came from which says so."""
    while error is not None:
        if nature := _nature(error):
            return nature
        error = error.__cause__ or error.__context__
    return ""


def _nature(error: BaseException) -> Nature:
    told: Nature = getattr(error, "nature", "")  # as another process has told it
    if told:
        return told
    match error:
        case PeerLostError():
            return "communication"
        case MemoryError() | KilledForMemoryError():
            return "host memory"
        case OSError() if error.errno in _NO_ROOM:
            return "disk"
    if type(error).__name__ == "OutOfMemoryError" and type(error).__module__.partition(".")[0] == "torch":
        return "GPU memory"
    return nature_told(str(error))


def nature_told(text: str) -> Nature:
    """The same by the text of an error."""
    return next((nature for pattern, nature in _TELLS if pattern.search(text)), "")
