"""Samples as files: lines of JSON, one page of HTML that fetches nothing, a table for pyarrow (the extra `data`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.errors import MissingExtraError
from hpcrl.foreign import plain
from hpcrl.inspect.archives import Sample
from hpcrl.inspect.pages import markup, page
from hpcrl.inspect.sample_texts import counted, headline
from hpcrl.inspect.views.samples import Samples, pieces

STYLES = """.error { color: var(--bad); } section > h2 { font-size: .85rem; }
pre { line-height: 1.6; }
"""
BODY = """<h1>{{ title }}</h1>
<p class="quiet">{{ counted }}. Tokens by advantage, or by log-ratio to the reference: green above zero, red below.</p>
{% for sample in samples %}
<section>
<h2>{{ sample.headline }}</h2>
{% for name, text in sample.texts %}<pre class="quiet" title="{{ name }}">{{ text }}</pre>
{% endfor %}{% if sample.pieces %}<pre>
{%- for text, colour in sample.pieces %}{% if colour -%}
<span style="background: {{ colour }}">{{ text }}</span>
{%- else %}{{ text }}{% endif %}{% endfor %}</pre>
{% endif %}{% if sample.error %}<pre class="error">{{ sample.error }}</pre>
{% endif %}<details><summary class="quiet">row</summary><pre>{{ sample.record }}</pre></details>
</section>
{% endfor %}
"""


def json_lines(view: Samples) -> Iterator[str]:
    """A line a response, with all that the archive has of it."""
    return (msgspec.json.encode(sample).decode() for sample in view.samples)


def to_html(view: Samples) -> bytes:
    """One page, readable without scripts. What texts hold is shown, never obeyed."""
    title = f"Samples of {Path(view.run_dir).name}"
    values = {"title": title, "counted": counted(view), "samples": [_shown(it) for it in view.samples]}
    return page(title, markup(BODY, values), styles=STYLES).encode()


def to_parquet(view: Samples) -> bytes:
    """A table: a row a response: figures and texts as columns, what tokens have as lists, the data set's row as JSON.

    Raises MissingExtraError where pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "data") from None
    rows = [_flat(sample) for sample in view.samples]
    names = dict.fromkeys(name for row in rows for name in row)
    out = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({name: [row.get(name) for row in rows] for name in names}), out)
    return out.getvalue().to_pybytes()


def _flat(sample: Sample) -> dict[str, Any]:
    """A column is named after what it belongs to where it would hide another."""
    row = {name: getattr(sample, name) for name in ("step", "data_set", "sample", "row", "number", "ended", "error")}
    row |= {f"text.{name}": text for name, text in sample.texts.items()}
    row |= {f"figure.{name}": number for name, number in sample.figures.items()}
    row |= {f"tokens.{name}": [float(number) for number in column] for name, column in sample.columns.items()}
    return row | {"record": msgspec.json.encode(sample.record).decode()}


def _shown(sample: Sample) -> dict[str, Any]:
    return {
        "headline": _whole(headline(sample)),
        "texts": [(_whole(name), _whole(text)) for name, text in sample.texts.items() if name != "response"],
        "pieces": [(_whole(piece), _colour(share)) for piece, share in pieces(sample)],
        "error": _whole(sample.error),
        "record": _whole(msgspec.json.format(msgspec.json.encode(sample.record)).decode()),
    }


def _colour(share: float) -> str:
    if not share:
        return ""
    return f"rgba({'46, 160, 67' if share > 0 else '218, 54, 51'}, {abs(share) * 0.6:.2f})"


def _whole(text: str) -> Any:
    """For a page, however long it is."""
    from markupsafe import escape

    return escape(plain(text, limit=max(1, len(text))))
