"""JSON-lines files that another process may still be writing, or died while writing."""

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Tail:
    """Reads a file from its start, then whatever was added since; knows nothing of what the lines mean.

    Only whole lines are given out. A file that is not there yet is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def lines(self) -> list[str]:
        """The whole lines since the last call."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").split("\n")[:-1]

    def rest(self) -> str:
        """What stands after the last whole line: a line without an end, if its writer died."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def rows(self) -> list[Row]:
        """The JSON objects among the lines since the last call; what is not one is passed over."""
        return [row for line in self.lines() if (row := parse(line)) is not None]


def parse(line: str) -> Row | None:
    """The JSON object of a line, or None."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
