"""Evaluated models as a terminal shows them."""

from rich.console import Group, RenderableType
from rich.text import Text

from hpcrl.foreign import plain
from hpcrl.inspect.uncut_table import UncutTable
from hpcrl.inspect.views.evaluation import Estimate, Evaluation


def evaluation_table(view: Evaluation) -> RenderableType:
    """A row per model and, below, what the others differ by from the first, or why they are not compared."""
    figures = list(dict.fromkeys(figure for model in view.models for figure in model.figures))
    table = _table("model", "prompts", *figures)
    for model in view.models:
        prompts = max((it.prompts for it in model.figures.values()), default=0)
        shown = (_interval(model.figures.get(figure)) for figure in figures)
        table.add_row(Text(plain(model.model)), str(prompts), *shown)
    parts: list[RenderableType] = [table]
    if view.differences:
        below = _table("difference", "prompts", *figures)
        for name in dict.fromkeys(it.model for it in view.differences):
            found = {it.figure: it.difference for it in view.differences if it.model == name}
            prompts = max(it.prompts for it in found.values())
            title = Text(plain(f"{name} − {view.models[0].model}"))
            below.add_row(title, str(prompts), *(_interval(found.get(figure)) for figure in figures))
        parts += [Text(), below]
    for it in view.not_compared:
        told = f"{it.model} is not compared with {it.against}, which was asked or judged otherwise. "
        settings = f"These settings differ: {', '.join(it.settings)}. One that is given to hpcrl eval is every model's."
        parts += [Text(), Text(plain(told + settings))]
    return Group(*parts, Text(), Text(f"Intervals: {view.intervals}.", style="dim"))


def _interval(it: Estimate | None) -> str:
    if it is None:
        return ""
    return f"{it.mean:.4g}" if it.low is None else f"{it.mean:.4g} [{it.low:.4g}, {it.high:.4g}]"


def _table(*columns: str) -> UncutTable:
    table = UncutTable()
    for number, name in enumerate(columns):
        table.add_column(Text(plain(name)), justify="right" if number else "left", no_wrap=True)
    return table
