"""Exit codes and the errors that carry them. A message names the value, the expectation and the knob to turn."""

from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar


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


class HpcrlError(Exception):
    """An error whose message is meant for the user; `exit_code` says whose it is."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL


class ConfigurationError(HpcrlError):
    """All problems of a configuration, together."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


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
    """A collective or a connection broke because another worker is gone; the membership is to change."""

    exit_code = ExitCode.REQUEUE


class MissingExtraError(HpcrlError):
    """An optional package is not installed."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'hpcrl[{extra}]'")
