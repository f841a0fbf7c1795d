"""Samples as files: lines of JSON, one page of HTML that fetches nothing, a table for pyarrow (the extra `data`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.errors import MissingExtraError
from hpcrl.foreign import plain
from hpcrl.inspect.archives import Sample
from hpcrl.inspect.sample_texts import counted, headline
from hpcrl.inspect.views.samples import Samples, pieces

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --quiet: #767676; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.2rem; } h2 { font-size: .85rem; font-weight: 600; margin: 0 0 .5rem; overflow-wrap: anywhere; }
section { border-top: 1px solid var(--line); padding: 1rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; font: 13px/1.6 ui-monospace, monospace; }
.quiet { color: var(--quiet); } .error { color: #c0392b; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
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
</body>
</html>
"""


def json_lines(view: Samples) -> Iterator[str]:
    """A line a response, with all that the archive has of it."""
    return (msgspec.json.encode(sample).decode() for sample in view.samples)


def to_html(view: Samples) -> str:
    """One page, readable without scripts. What texts hold is shown, never obeyed."""
    # Whoever looks at numbers only waits for no template.
    from jinja2 import Environment

    page = Environment(autoescape=True).from_string(PAGE)
    title = f"Samples of {Path(view.run_dir).name}"
    return page.render(title=_neutral(title), counted=counted(view), samples=[_shown(it) for it in view.samples])


def write_parquet(view: Samples, path: Path) -> None:
    """A row a response: figures and texts as columns, what tokens have as lists, the data set's row as JSON.

    Raises MissingExtraError where pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "data") from None
    rows = [_flat(sample) for sample in view.samples]
    names = dict.fromkeys(name for row in rows for name in row)
    parquet.write_table(pyarrow.table({name: [row.get(name) for row in rows] for name in names}), path)


def _flat(sample: Sample) -> dict[str, Any]:
    """A column is named after what it belongs to where it would hide another."""
    row = {name: getattr(sample, name) for name in ("step", "data_set", "sample", "row", "number", "ended", "error")}
    row |= {f"text.{name}": text for name, text in sample.texts.items()}
    row |= {f"figure.{name}": number for name, number in sample.figures.items()}
    row |= {f"tokens.{name}": [float(number) for number in column] for name, column in sample.columns.items()}
    return row | {"record": msgspec.json.encode(sample.record).decode()}


def _shown(sample: Sample) -> dict[str, Any]:
    return {
        "headline": _neutral(headline(sample)),
        "texts": [(_neutral(name), _neutral(text)) for name, text in sample.texts.items() if name != "response"],
        "pieces": [(_neutral(piece), _colour(share)) for piece, share in pieces(sample)],
        "error": _neutral(sample.error),
        "record": _neutral(msgspec.json.format(msgspec.json.encode(sample.record)).decode()),
    }


def _colour(share: float) -> str:
    if not share:
        return ""
    return f"rgba({'46, 160, 67' if share > 0 else '218, 54, 51'}, {abs(share) * 0.6:.2f})"


def _neutral(text: str) -> str:
    return plain(text, limit=max(1, len(text)))
