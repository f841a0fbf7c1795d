"""The settings of a run as a part of its report."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from hpcrl.inspect.pages import table
from hpcrl.inspect.view_tables import Table
from hpcrl.inspect.views.diff import Difference
from hpcrl.inspect.views.settings import Settings, Version
from hpcrl.inspect.words import counted

CHANGES_SAID = 2


def settings_section(view: Settings) -> dict[str, Any]:
    """Values of the page's template."""
    own = [(it.key, written(it.value), "" if it.default is None else written(it.default)) for it in view.own]
    every = [(key, written(value)) for key, value in view.every.items()]
    note = "Those that differ from their defaults." + (" As they are now: some were changed." if view.versions else "")
    return {
        "own_settings": table(Table(("setting", "value", "default"), own, (note,)), "settings"),
        "every_setting": table(Table(("setting", "value"), every), "all settings"),
        "settings_count": len(every),
        "versions": [_version(it) for it in view.versions],
    }


def written(value: Any) -> str:
    """As a user writes it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _version(it: Version) -> dict[str, Any]:
    when = f"{datetime.fromtimestamp(it.created, UTC):%Y-%m-%d %H:%M} UTC"
    since = "no step has ended under them" if it.from_step is None else f"from step {it.from_step}"
    changes = [_change(change) for change in it.changes]
    changes += [it.lacks] if it.lacks else [] if it.changes or it.code else ["nothing differs from the version before"]
    code = [(f"{of.file}, {counted(_count(of.lines), 'line')} differ:", "\n".join(of.lines)) for of in it.code]
    return {"version": it.version, "since": f"{since} ({when})", "changes": changes, "code": code}


def in_short(it: Version) -> str:
    """What a version changed, in a line."""
    changes = [_change(change) for change in it.changes[:CHANGES_SAID]]
    more = len(it.changes) - len(changes)
    changes += [f"{more} other settings"] if more > 0 else []
    return ", ".join([*changes, *(["other code"] if it.code else [])])


def _count(lines: list[str]) -> int:
    return sum(line[:1] in "+-" for line in lines)


def _change(it: Difference) -> str:
    if it.lacks == "first":
        return f"{it.name} = {written(it.second)} (was not set)"
    if it.lacks == "second":
        return f"{it.name} is no longer set (was {written(it.first)})"
    return f"{it.name} = {written(it.second)} (was {written(it.first)})"
