"""Tables as a terminal shows them."""

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from hpcrl.foreign import plain
from hpcrl.inspect.view_tables import Table

WAITED_FOR = "what it waited for"
LEFT = ("metric", "setting", "ended by", WAITED_FOR)
"""Columns of texts, in tables that say no types."""


def shown(table: Table) -> RenderableType:
    """Numbers to the right; below it, its notes."""
    rich = _empty()
    for number, name in enumerate(table.columns):
        rich.add_column(name, justify="right" if table.is_number(number) else "left", no_wrap=True)
    for row in (*table.rows, *([table.total] if table.total else [])):
        rich.add_row(*(Text(plain(cell[0] if isinstance(cell, tuple) else cell)) for cell in row))
    return Group(rich, *(Text(plain(note), style="dim") for note in table.notes))


def plain_table(*columns: str) -> RichTable:
    """Names and texts to the left, numbers to the right."""
    table = _empty()
    for name in columns:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    return table


def _empty() -> RichTable:
    return RichTable(box=None, padding=(0, 2, 0, 0), header_style="dim")
