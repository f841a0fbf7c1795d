"""The kinds of row that are texts. Tokenizers are loaded when rows are opened, not when an algorithm is named."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcrl.data.rows.kind import Dataset, Indexes, RowKind
from hpcrl.data.rows.lines import needed
from hpcrl.data.rows.text_form import TextForm


def text_rows(form: TextForm) -> RowKind[Any]:
    """Rows of data.train and data.evaluate.

    An experiment of such rows has a section `data`, and `generation` if responses follow the prompts.
    """

    def opened(experiment: Any, evaluates: bool, indexes: Indexes) -> Mapping[str, Dataset]:
        from hpcrl.data.rows.texts import open_rows

        return open_rows(experiment, evaluates, indexes, form)

    def inputs(experiment: Any) -> Iterable[tuple[str, list[Path]]]:
        from hpcrl.data.rows import texts

        return texts.inputs(experiment)

    return RowKind(
        fields=tuple(needed(form.lines[0])),
        keys=form.keys,
        open=opened,
        evaluates=lambda experiment: experiment.data.evaluate is not None,
        inputs=inputs,
    )
