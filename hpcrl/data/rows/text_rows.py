"""The kinds of row that are texts. Tokenizers are loaded when rows are opened, not when an algorithm is named."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcrl.data.form import TOKENS
from hpcrl.data.rows.kind import Dataset, RowKind


def text_rows(fields: tuple[str, ...], keys: tuple[str, ...]) -> RowKind[Any]:
    """Rows of data.train and data.evaluate. The first key is the prompts', the second, if there is one, the answers'.

    An experiment of such rows has a section `data`, and `generation` if responses follow the prompts.
    """

    def opened(experiment: Any, evaluates: bool) -> Mapping[str, Dataset]:
        from hpcrl.data.rows.texts import open_rows

        return open_rows(experiment, evaluates, *keys)

    def inputs(experiment: Any) -> Iterable[tuple[str, list[Path]]]:
        from hpcrl.data.rows import texts

        return texts.inputs(experiment)

    return RowKind(
        fields=fields,
        keys=dict.fromkeys(keys, TOKENS),
        open=opened,
        evaluates=lambda experiment: experiment.data.evaluate is not None,
        inputs=inputs,
    )
