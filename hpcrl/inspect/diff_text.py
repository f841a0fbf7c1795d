"""How two runs differ, as a terminal shows it."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from hpcrl.foreign import plain
from hpcrl.inspect.tables import plain_table
from hpcrl.inspect.views.diff import Curve, Diff, Difference
from hpcrl.inspect.words import counted

LONGEST = 60
"""Characters of a value."""


def render_diff(view: Diff) -> RenderableType:
    parts: list[RenderableType] = [
        Text(plain(f"first   {view.first}: {counted(view.steps_first, 'step')}")),
        Text(plain(f"second  {view.second}: {counted(view.steps_second, 'step')}")),
        Text(),
    ]
    for title, differences in (("setting", view.settings), ("input", view.inputs), ("file of code", view.code)):
        parts += [_differences(title, differences), Text()] if differences else []
    parts += [Text(line) for line in _samples(view)]
    if view.curves:
        parts += [Text(), _curves(view.curves)]
    elif view.compared:
        parts.append(
            Text(f"All metrics of the {counted(view.compared, 'step')} that both have are the same to the bit.")
        )
    for name, lacks in view.only.items():
        parts.append(Text(plain(f"{name}: the {lacks} run has none"), style="dim"))
    if view.same:
        parts.append(Text("Nothing differs in what both have done.", style="green"))
    return Group(*parts)


def _differences(title: str, found: Sequence[Difference]) -> RenderableType:
    table = plain_table(title, "first", "second")
    for column in table.columns:
        column.justify, column.no_wrap, column.overflow = "left", False, "fold"
    for it in found:
        values = (_value(it.first, it.lacks == "first"), _value(it.second, it.lacks == "second"))
        table.add_row(Text(plain(it.name)), *values)
    return table


def _value(value: Any, lacks: bool) -> Text:
    if lacks:
        return Text("there is none", style="dim")
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return Text(plain(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"))


def _samples(view: Diff) -> list[str]:
    it = view.samples
    if it is None:
        return ["Every step that both have opened was made of the same samples in the same order."]
    ids = " and ".join("none" if name is None else name for name in (it.first, it.second))
    return [
        plain(
            f"Step {it.step} is the first that was made of other samples: number {it.position} is {ids}; {it.in_both} "
            f"of {it.count_first} and {it.count_second} are in both."
        )
    ]


def _curves(curves: Sequence[Curve]) -> RenderableType:
    table = plain_table("metric", "from", "first", "second", "at step", "first", "second", "by")
    for it in curves:
        by = "" if it.last_by is None else f"{it.last_by:+.3g}"
        ends = (_number(it.last_first), _number(it.last_second), by)
        values = (_number(it.first), _number(it.second), str(it.last_step), *ends)
        table.add_row(Text(plain(it.metric)), str(it.step), *values)
    return table


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else "" if value is None else plain(str(value))
