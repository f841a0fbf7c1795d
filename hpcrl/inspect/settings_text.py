"""The settings of a run, in words: for a terminal, and as a part of its report."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from hpcrl.foreign import plain
from hpcrl.inspect.pages import table
from hpcrl.inspect.tables import shown
from hpcrl.inspect.view_tables import Table
from hpcrl.inspect.views.diff import Difference
from hpcrl.inspect.views.settings import Settings, Version
from hpcrl.inspect.words import counted

CHANGES_SAID = 2


class VersionSaid(NamedTuple):
    """A later version: since when it counted, what it changed, and the files of code that differ, with their lines."""

    version: int
    since: str
    changes: list[str]
    code: list[tuple[str, str]]


def settings_section(view: Settings) -> dict[str, Any]:
    """Values of the page's template."""
    every = [(key, written(value)) for key, value in view.every.items()]
    return {
        "own_settings": table(own_table(view), "settings"),
        "every_setting": table(Table(("setting", "value"), every), "all settings"),
        "settings_count": len(every),
        "versions": [said(it)._asdict() for it in view.versions],
    }


def render_settings(view: Settings) -> RenderableType:
    lines = [Text(plain(line)) for it in view.versions for line in _lines(said(it))]
    more = len(view.every) - len(view.own)
    rest = f"{counted(more, 'other setting')} as by default: --json"
    return Group(shown(own_table(view)), Text(rest, style="dim"), *lines)


def own_table(view: Settings) -> Table:
    """Those that differ from their defaults."""
    own = [(it.key, written(it.value), "" if it.default is None else written(it.default)) for it in view.own]
    note = "Those that differ from their defaults." + (" As they are now: some were changed." if view.versions else "")
    return Table(("setting", "value", "default"), own, (note,))


def written(value: Any) -> str:
    """As a user writes it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def said(it: Version) -> VersionSaid:
    when = f"{datetime.fromtimestamp(it.created, UTC):%Y-%m-%d %H:%M} UTC"
    since = "no step has ended under them" if it.from_step is None else f"from step {it.from_step}"
    changes = [_change(change) for change in it.changes]
    changes += [it.lacks] if it.lacks else [] if it.changes or it.code else ["nothing differs from the version before"]
    code = [(f"{of.file}, {counted(_count(of.lines), 'line')} differ:", "\n".join(of.lines)) for of in it.code]
    return VersionSaid(it.version, f"{since} ({when})", changes, code)


def in_short(it: Version) -> str:
    """What a version changed, in a line."""
    changes = [_change(change) for change in it.changes[:CHANGES_SAID]]
    more = len(it.changes) - len(changes)
    changes += [f"{more} other settings"] if more > 0 else []
    return ", ".join([*changes, *(["other code"] if it.code else [])])


def _lines(it: VersionSaid) -> Iterator[str]:
    yield ""
    yield f"settings {it.version}, {it.since}"
    yield from (f"  {change}" for change in it.changes)
    for title, lines in it.code:
        yield f"  {title}"
        yield from (f"    {line}" for line in lines.splitlines())


def _count(lines: list[str]) -> int:
    return sum(line[:1] in "+-" for line in lines)


def _change(it: Difference) -> str:
    if it.lacks == "first":
        return f"{it.name} = {written(it.second)} (was not set)"
    if it.lacks == "second":
        return f"{it.name} is no longer set (was {written(it.first)})"
    return f"{it.name} = {written(it.second)} (was {written(it.first)})"
