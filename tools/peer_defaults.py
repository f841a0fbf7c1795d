"""Our defaults beside verl 0.9.1's and TRL 1.16's, of which `docs/formulas/defaults.json` says where they stand.

`make peers` looks whether theirs are what the file says, and a test whether ours follow the rule: verl's where it has
one, else TRL's, else a reason.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULTS = Path(__file__).parent.parent / "docs" / "formulas" / "defaults.json"
COLUMNS = ("setting", "ours", "verl 0.9.1", "TRL 1.16", "note")


@dataclass(frozen=True)
class Default:
    """A peer's: where it stands, its value, and what that is in our words."""

    where: str
    value: Any
    meaning: Any

    def text(self) -> str:
        return f"`{self.where}` {shown(self.value)}"


@dataclass(frozen=True)
class Compared:
    """A setting of ours and those of theirs that do the same."""

    setting: str
    verl: Default | None
    trl: Default | None
    why: str

    @property
    def wanted(self) -> Default | None:
        return self.verl or self.trl

    def row(self, ours: Any) -> tuple[str, ...]:
        peers = (default.text() if default else "" for default in (self.verl, self.trl))
        return (f"`{self.setting}`", shown(ours), *peers, self.why)


def compared(name: str) -> Iterator[Compared]:
    """Of an algorithm, or of `policy` what all of them share whose policy learns from scored responses."""
    for row in json.loads(DEFAULTS.read_text(encoding="utf-8")).get(name, []):
        verl, trl = (_default(row[peer]) if peer in row else None for peer in ("verl", "trl"))
        yield Compared(row["setting"], verl, trl, row.get("why", ""))


def shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _default(parts: list[Any]) -> Default:
    where, value, *rest = parts
    return Default(where, value, rest[0] if rest else value)
