"""Where lines of the user's are that a message names in the run's copy of them."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import HpcrlError
from hpcrl.foreign import plain

COPY = re.compile(r"(?P<root>/[^\n\"']*?/code/(?P<number>\d{3,}))(?P<own>/[^\n\"':]+)")
FRAME = re.compile(r'File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?P<innermost_last>,)?')
"""Of a traceback, which has the innermost last; faulthandler has it first, and no comma."""


class OwnLine(msgspec.Struct, frozen=True):
    """A line of the user's code at which something happened: theirs to edit; `copy` is what the run has executed."""

    file: str
    line: int
    text: str
    copy: str


class OwnCode:
    """The user's code as a run has it: its copies stand for the files that they were made of."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._known: dict[int, frozenset[str]] = {}

    def named(self, text: str) -> str:
        """The text, with the user's own files in the place of the run's copies."""
        return COPY.sub(lambda found: found["own"] if self._has(found) else found[0], text)

    def line(self, *texts: str) -> OwnLine | None:
        """The innermost line of the user's code that the first text with one names."""
        return next((line for text in texts for line in self._lines(text)), None)

    def settings(self, line: OwnLine | None, text: str) -> list[str]:
        """Those that name the code of a line; of no line, those that a text names. Errors of rewards and environments
        name theirs: what names none is of an algorithm, a script or a role's method."""
        try:
            known = self._run.read_code(self._run.newest_code()).settings
        except (HpcrlError, OSError):
            return []
        if line is not None:
            return sorted(key for key, setting in known.items() if line.file in setting.files)
        return named_in(text, known) or sorted({"algorithm"} & known.keys())

    def _lines(self, text: str) -> Iterator[OwnLine]:
        """The innermost first."""
        frames = [*FRAME.finditer(text)]
        for frame in reversed(frames) if frames and frames[0]["innermost_last"] else frames:
            found = COPY.fullmatch(frame["path"])
            if found is not None and self._has(found):
                copy, line = self._run.code_copy(int(found["number"])) / found["own"][1:], int(frame["line"])
                yield OwnLine(plain(found["own"]), line, plain(_line_of(copy, line)), plain(str(copy)))

    def _has(self, found: re.Match[str]) -> bool:
        number = int(found["number"])
        if number not in self._known:
            try:
                self._known[number] = frozenset(self._run.read_code(number).files)
            except (HpcrlError, OSError):
                self._known[number] = frozenset()
        return found["own"] in self._known[number]


def named_in(text: str, settings: Iterable[str]) -> list[str]:
    """Those of the settings that a text names."""
    return sorted(key for key in settings if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.]*\w)", text))


def _line_of(path: Path, number: int) -> str:
    """Without what stands before it; empty where it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""
