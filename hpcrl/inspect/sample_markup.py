"""A sample on a page: its reward and what it consists of, prompt and response token by token, error and row."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hpcrl.foreign import plain
from hpcrl.inspect.archives import Sample
from hpcrl.inspect.pages import markup
from hpcrl.inspect.sample_texts import MEANT
from hpcrl.inspect.views.samples import pieces, shade_of
from hpcrl.inspect.words import counted

if TYPE_CHECKING:
    from markupsafe import Markup

SHADES = ((0.6, 3), (0.3, 2), (0.1, 1))
"""Share of the largest number of a response from which a token is shaded so strongly."""
LENGTHS = {"prompt_length": "prompt", "length": "response"}
MEANS = {
    "advantages": "advantage",
    "returns": "return",
    "values": "value",
    "logprobs": "log-probability",
    "ref_logprobs": "log-probability by the reference",
    "log_ratio": "log-ratio",
}
"""Figure → what it is the mean of, over the response's tokens."""
DATA = {"train": "the training data", "eval": "the held-out data"}
ENDS = {
    "eos": "ended by itself",
    "stop": "ended by a stop string",
    "length": "cut at the largest length",
}

SHORT = 300
"""Characters of a row that is not folded."""

STYLES = """
article { border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; margin: .8rem 0; }
article h3 { margin: 0; font-size: .95rem; } article p { margin: .1rem 0; font-size: .85rem; }
article > div { display: grid; grid-template-columns: 4.5rem minmax(0, 1fr); gap: .15rem .6rem; margin-top: .4rem; }
article h4 { margin: .15rem 0 0; font-size: .75rem; font-weight: 500; color: var(--quiet); overflow-wrap: anywhere; }
article pre { margin: 0; } article details { font-size: .85rem; margin-top: .3rem; }
@media (max-width: 32rem) { article { padding: .4rem .6rem; } article p { font-size: .8rem; } }
:root { --u1: rgba(46, 160, 67, .18); --u2: rgba(46, 160, 67, .34); --u3: rgba(46, 160, 67, .55);
  --d1: rgba(218, 54, 51, .15); --d2: rgba(218, 54, 51, .28); --d3: rgba(218, 54, 51, .42); }
@media (prefers-color-scheme: dark) { :root { --u1: rgba(46, 160, 67, .26); --u2: rgba(46, 160, 67, .46);
  --u3: rgba(46, 160, 67, .68); --d1: rgba(218, 54, 51, .3); --d2: rgba(218, 54, 51, .54);
  --d3: rgba(218, 54, 51, .78); } }
.u1 { background: var(--u1); } .u2 { background: var(--u2); } .u3 { background: var(--u3); }
.d1, .d2, .d3 { text-decoration: underline dotted; text-underline-offset: .2em; }
.d1 { background: var(--d1); } .d2 { background: var(--d2); } .d3 { background: var(--d3); }
.scale { font-size: .8rem; } .scale > span { padding: 0 .3rem; }
"""

SAMPLES = """
{% for it in samples %}
<article>
<h3>{{ it.title }}</h3>
{% for line in it.lines %}
<p class="quiet">{{ line }}</p>
{% endfor %}
<div>
{% for name, text in it.texts %}
<h4>{{ name }}</h4>
<pre dir="auto">
{{ text }}</pre>
{% endfor %}
{% if it.pieces %}
<h4>response</h4>
<pre dir="auto">
{% for text, shade in it.pieces %}
{% if shade %}<span class="{{ shade }}">{{ text }}</span>{% else %}{{ text }}{% endif %}
{% endfor %}
</pre>
{% endif %}
{% if it.is_empty %}
<h4>response</h4>
<p class="quiet">(no text)</p>
{% endif %}
{% if it.error %}
<h4>error</h4>
<pre class="bad">
{{ it.error }}</pre>
{% endif %}
{% if it.row %}
<h4>row</h4>
<pre dir="auto">
{{ it.row }}</pre>
{% endif %}
</div>
{% if it.record %}
<details><summary>row of the data set</summary>
<pre dir="auto">
{{ it.record }}</pre></details>
{% endif %}
</article>
{% endfor %}
"""
"""The first line break in a <pre> is none of its text."""

SCALE = """<p class="scale">{% for text, shade in shades %}<span class="{{ shade }}">{{ text }}</span>{% endfor %}
<span class="quiet">or more of the largest {{ of }} in the response</span></p>"""


def samples_markup(samples: Sequence[Sample], longest: int | None = None) -> "Markup":
    """One below the other; texts are cut at `longest` characters."""
    return markup(SAMPLES, {"samples": [_shown(it, longest) for it in samples]})


def shades_are(samples: Sequence[Sample]) -> str:
    """What the colours of tokens mean."""
    names = _shaded_by(samples)
    if not names:
        return ""
    by = " or ".join(MEANT[name] for name in names)
    return f"Tokens are shaded by {by}: green above zero, red and underlined below."


def _shaded_by(samples: Sequence[Sample]) -> list[str]:
    return [*dict.fromkeys(name for sample in samples if (name := shade_of(sample)[0]))]


def scale(samples: Sequence[Sample]) -> "Markup":
    """A token of each shade; nothing where no token has one."""
    from markupsafe import Markup

    names = _shaded_by(samples)
    if not names:
        return Markup()
    shades = [*((-share, f"d{name}") for share, name in SHADES), *((share, f"u{name}") for share, name in SHADES[::-1])]
    values = [(f"{share:+.0%}".replace("-", "−"), shade) for share, shade in shades]
    return markup(SCALE, {"shades": values, "of": " or ".join(MEANS[name] for name in names)})


def _shown(sample: Sample, longest: int | None) -> dict[str, Any]:
    figures = dict(sample.figures)
    reward = figures.pop("reward", None)
    figures.pop("finished", None)  # `ended` says it
    lengths = [f"{of}: {counted(round(figures.pop(name)), 'token')}" for name, of in LENGTHS.items() if name in figures]
    means = [f"{what} {figures.pop(name):.4g}" for name, what in MEANS.items() if name in figures]
    rest = [f"{name} {number:.4g}" for name, number in figures.items()]
    which = f", response {sample.number}" if sample.number else ""
    epoch = sample.sample.rpartition("@")[2].partition("#")[0]
    about = [
        f"row {sample.row} of {DATA.get(sample.data_set, sample.data_set)}, epoch {epoch}{which}, step {sample.step} "
        f"({sample.sample})",
        *lengths,
    ]
    about += [ENDS.get(sample.ended, f"ended by {sample.ended}")] if sample.ended else []
    lines = [" · ".join(about), f"means over its tokens: {' · '.join(means)}" if means else ""]
    title = " · ".join([*([] if reward is None else [f"reward {reward:.4g}"]), *rest]) or sample.sample
    row = msgspec.json.encode(_besides(sample.record, sample.texts.get("prompt"))).decode()
    record = msgspec.json.format(row)
    return {
        "title": _whole(title),
        "lines": [_whole(line) for line in lines if line],
        "texts": [(_whole(name), _cut(text, longest)) for name, text in sample.texts.items() if name != "response"],
        "pieces": _pieces(sample, longest),
        "is_empty": sample.texts.get("response") == "",
        "error": _cut(sample.error, longest),
        "row": _whole(row) if 2 < len(row) <= SHORT else "",
        "record": _cut(record, longest) if len(row) > SHORT else "",
    }


def _besides(record: Any, prompt: str | None) -> Any:
    """A row without the prompt, where that is shown as the row has it."""
    if not isinstance(record, Mapping):
        return record
    return {name: value for name, value in record.items() if value != prompt}


def _pieces(sample: Sample, longest: int | None) -> list[tuple[Any, str]]:
    """The response's tokens, neighbours of a shade together."""
    found: list[tuple[str, str]] = []
    for text, share in pieces(sample):
        shade = next((f"{'u' if share > 0 else 'd'}{name}" for least, name in SHADES if abs(share) >= least), "")
        if found and found[-1][1] == shade:
            text = found.pop()[0] + text
        found.append((text, shade))
    shown, left = list[tuple[Any, str]](), longest
    for text, shade in found:
        if left is None or left > 0:
            shown.append((_whole(text[:left]), shade))
        left = None if left is None else left - len(text)
    if left is not None and left < 0:
        shown.append((f" … {-left} more characters", ""))
    return [(text, shade) for text, shade in shown if text]


def _cut(text: str, longest: int | None) -> Any:
    more = 0 if longest is None else len(text) - longest
    return _whole(f"{text[:longest]} … {more} more characters" if more > 0 else text)


def _whole(text: str) -> Any:
    """For a page, however long it is."""
    from markupsafe import escape

    return escape(plain(text, limit=max(1, len(text))))
