"""Samples as files: lines of JSON, one page of HTML that fetches nothing, a table for pyarrow (the extra `data`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.errors import MissingExtraError
from hpcrl.inspect.archives import Sample
from hpcrl.inspect.pages import markup, page
from hpcrl.inspect.sample_markup import STYLES, samples_markup, scale, shades_are
from hpcrl.inspect.sample_texts import counted
from hpcrl.inspect.views.samples import Samples

BODY = """<h1>{{ title }}</h1>
<p class="quiet">{{ counted }}. {{ shades }}</p>
{{ scale }}

{% for step, why in lost %}<p class="bad">Of step {{ step }} not all could be kept: {{ why }}</p>
{% endfor %}{{ samples }}
"""


def json_lines(view: Samples) -> Iterator[str]:
    """A line a response, with all that the archive has of it."""
    return (msgspec.json.encode(sample).decode() for sample in view.samples)


def to_html(view: Samples) -> bytes:
    """One page, readable without scripts. What texts hold is shown, never obeyed."""
    title = f"Samples of {Path(view.run_dir).name}"
    shown = {"samples": samples_markup(view.samples), "shades": shades_are(view.samples), "scale": scale(view.samples)}
    values = {"title": title, "counted": counted(view), "lost": list(view.lost.items()), **shown}
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
