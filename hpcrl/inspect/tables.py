"""Tables as a terminal shows them."""

from rich.table import Table


def plain_table(*columns: str) -> Table:
    """Names and texts to the left, numbers to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    left = (
        "metric",
        "call",
        "wall time",
        "ended by",
        "over all steps",
        "worker",
        "node",
        "costliest calls",
        "role",
        "type",
        "written to",
    )
    for number, name in enumerate(columns):
        is_text = name in left or (name == "calls" and number == len(columns) - 1)
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    return table
