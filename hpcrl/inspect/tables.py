"""Tables as a terminal shows them."""

from rich.console import Group, JustifyMethod, RenderableType
from rich.text import Text

from hpcrl.foreign import plain
from hpcrl.inspect.uncut_table import UncutTable
from hpcrl.inspect.view_tables import Table

WAITED_FOR = "what it waited for"
LEFT = ("metric", "setting", "ended by", WAITED_FOR)
"""Columns of texts, in tables that say no types."""


def shown(table: Table) -> RenderableType:
    """Numbers to the right; below it, its notes."""
    rich = UncutTable()
    for number, name in enumerate(table.columns):
        is_number = table.is_number(number)
        justify: JustifyMethod = "right" if is_number else "left"
        rich.add_column(name, justify=justify, no_wrap=is_number or number == 0, overflow="fold")
    for row in (*table.rows, *([table.total] if table.total else [])):
        rich.add_row(*(Text(plain(cell[0] if isinstance(cell, tuple) else cell)) for cell in row))
    return Group(rich, *(Text(plain(note), style="dim") for note in table.notes))


def plain_table(*columns: str) -> UncutTable:
    """Names and texts to the left, numbers to the right."""
    table = UncutTable()
    for name in columns:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    return table
