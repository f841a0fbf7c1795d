"""A table of which a narrow terminal cuts nothing. Apart from views' tables: who lists runs loads no arrays."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDEST = 1 << 16
LEAST_TEXT = 16
"""Columns of a terminal that a text has, however narrow it is."""
PADDING = 2


class UncutTable(Table):
    """Nothing is left out. Where a terminal is too narrow, names of columns of numbers are broken, then texts; where
    that is not enough, the terminal breaks the lines."""

    def __init__(self) -> None:
        super().__init__(box=None, padding=(0, PADDING, 0, 0), header_style="dim")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least(console, options) > options.max_width:
            for column in self.columns:
                if column.no_wrap:
                    column.header = Text("\n".join(str(column.header).split()))
        width = max(options.max_width, self._least(console, options))
        yield from super().__rich_console__(console, options.update(width=width))

    def _least(self, console: Console, options: ConsoleOptions) -> int:
        """The width that it needs; no column becomes narrower than its part of it."""
        for column in self.columns:
            of = (Measurement.get(console, options.update(width=WIDEST), it) for it in (column.header, *column.cells))
            widest = max(it.maximum for it in of)
            column.min_width = widest if column.no_wrap else min(widest, LEAST_TEXT)
        return sum((column.min_width or 0) + PADDING for column in self.columns)
