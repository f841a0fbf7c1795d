"""Whether a user's function has made the rows that its call declares. Knows neither the function nor what is done."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcrl.data.form import Form
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC


def own_forms(call: MFC, forms: Mapping[str, Form]) -> dict[str, Form]:
    """What a call makes, by the keys that its function has for it; `forms` are by key of the graph."""
    own = {graph: key for key, graph in call.output_remap.items()}
    return {own.get(key, key): forms[key] for key in call.outputs}


def packed(ids: Sequence[str], made: Mapping[str, Sequence[np.ndarray]], forms: Mapping[str, Form]) -> SequenceSample:
    """Rows that fit."""
    return SequenceSample.from_rows(ids, {key: [*made[key]] for key in forms}) if ids else SequenceSample.empty(forms)


def misfit(forms: Mapping[str, Form], samples: int, made: Any) -> str:
    """What is wrong with what a function gave; "" where all is as declared."""
    if not isinstance(made, Mapping):
        return f"gave a {type(made).__name__}"
    if set(made) != set(forms):
        return f"gave the keys {', '.join(map(str, made)) or 'none'}"
    for key, form in forms.items():
        rows = [*made[key]] if isinstance(made[key], Sequence | np.ndarray) else None
        if rows is None:
            return f"gave a {type(made[key]).__name__} as {key}"
        if len(rows) != samples:
            return f"gave {len(rows)} rows of {key}"
        dtype = np.dtype(form.dtype)
        for row in rows:
            if not isinstance(row, np.ndarray):
                return f"gave a {type(row).__name__} as a row of {key}, which has to be a numpy array"
            if row.ndim != 1 + len(form.trailing) or row.shape[1:] != form.trailing:
                shape = ", ".join(("length", *map(str, form.trailing)))
                return f"gave a row of {key} of the shape {list(row.shape)}, which has to be [{shape}]"
            if row.dtype != dtype:
                return f"gave a row of {key} of type {row.dtype.name}; row.astype({form.dtype!r}) converts it"
    return ""


def in_words(forms: Mapping[str, Form]) -> str:
    """`entropy: float32, kept: bool`."""
    return ", ".join(f"{key}: {form.dtype}" for key, form in forms.items())
