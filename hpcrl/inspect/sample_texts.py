"""Samples as text for a terminal: each response coloured token by token, green above zero and red below."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from hpcrl.foreign import plain
from hpcrl.inspect.archives import Sample
from hpcrl.inspect.views.samples import Samples, are_gone, pieces, shade_of

STRONG, MIDDLE = 0.5, 0.15
"""Shares of the largest number of a response from which a token is coloured so."""
MAIN = ("prompt", "response")
MEANT = {"advantages": "advantage", "log_ratio": "log p(actor) - log p(reference)"}


def render(view: Samples) -> RenderableType:
    parts: list[RenderableType] = []
    for sample in view.samples:
        parts += [*_sample(sample), Text()]
    shades = dict.fromkeys(name for sample in view.samples if (name := shade_of(sample)[0]))
    for name in shades:
        parts.append(Text(f"Tokens by {MEANT[name]}: green above zero, red below.", style="dim"))
    for step, why in view.lost.items():
        parts.append(Text(plain(f"Of step {step} not all could be kept: {why}"), style="yellow"))
    parts.append(Text(counted(view), style="dim"))
    return Group(*parts)


def counted(view: Samples) -> str:
    """`3 of 32 samples of step 12`."""
    first, last = view.steps[0], view.steps[-1]
    of = f"step {first}" if first == last else f"{len(view.steps)} steps from {first} to {last}"
    return f"{len(view.samples)} of {view.looked_at} samples of {of}{are_gone(view.gone)}"


def headline(sample: Sample) -> str:
    """Where a sample is from, and its figures."""
    where = f"step {sample.step} · {sample.data_set} · {sample.sample}"
    where += f" ({sample.number + 1})" if sample.number else ""
    ended = f" · ended by {sample.ended}" if sample.ended else ""
    return where + "".join(f" · {name} {number:.4g}" for name, number in sample.figures.items()) + ended


def _sample(sample: Sample) -> Iterator[RenderableType]:
    yield Text(_neutral(headline(sample)), style="bold")
    if "prompt" in sample.texts:
        yield Text(_neutral(sample.texts["prompt"]), style="dim")
    if "response" in sample.texts:
        yield _coloured(sample)
    for name, text in sample.texts.items():
        if name not in MAIN:
            yield Text.assemble((f"{_neutral(name)}: ", "cyan"), _neutral(text))
    if sample.error:
        yield Text(_neutral(sample.error), style="red")


def _coloured(sample: Sample) -> Text:
    text = Text()
    for piece, share in pieces(sample):
        text.append(_neutral(piece), style=_style(share))
    return text


def _style(share: float) -> str:
    if abs(share) < MIDDLE:
        return ""
    colour = "green" if share > 0 else "red"
    return f"bold {colour}" if abs(share) >= STRONG else colour


def _neutral(text: str) -> str:
    """Nothing in it steers a terminal; nothing of it is left out."""
    return plain(text, limit=max(1, len(text)))
