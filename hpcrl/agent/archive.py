"""What is kept of a step's samples for good: a pure function of what its calls made, of the data and of the settings.

Knows no units and no order: it is told which samples stay, and what the parts of a step's calls are. Needs the
tokenizer, so that whoever reads an archive needs none.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcrl.config.data import tokenizer_of
from hpcrl.config.environment import ends_of
from hpcrl.config.fields import sections_of
from hpcrl.config.reward import RewardConfig
from hpcrl.data.datasets import Texts, open_texts
from hpcrl.data.form import TOKENS
from hpcrl.data.rows.kind import EVAL_PREFIX, Dataset
from hpcrl.data.samples import SequenceSample
from hpcrl.data.tokens import before_stop
from hpcrl.dataflow.graph import recipe_name
from hpcrl.durable.archives import ENDED, ENDS, RECORD, TEXT, About, text_row
from hpcrl.durable.journal import Ids
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.environment import form_between

Made = Mapping[tuple[str, int], SequenceSample]
"""What the parts of calls made, by call and part."""
Rows = dict[str, dict[str, list[np.ndarray]]]
"""Key → sample → its sub-sequences."""


class Archive:
    """Makes what archives hold, of the steps of one attempt."""

    def __init__(self, experiment: Any, datasets: Mapping[str, Dataset]) -> None:
        algorithm = algorithm_of(experiment)
        self._datasets = datasets
        self._forms = algorithm.forms(experiment)
        self._of = {call.name: call.dataset for call in algorithm.calls(experiment)}
        self._texts: Texts | None = None if tokenizer_of(experiment) is None else open_texts(experiment, datasets)
        self._stop = ends_of(experiment)
        rewards = sections_of(experiment, RewardConfig).values()
        self._components = next((tuple(reward.parts) for reward in rewards), ())

    def of(self, stay: Mapping[str, Ids], made: Made, shown: Iterable[SequenceSample]) -> Mapping[str, SequenceSample]:
        """Data set → the samples that stay with all that is kept of them. `shown` is what train steps have shown."""
        found = {}
        for name, ids in stay.items():
            of_calls = [made[unit] for unit in sorted(made, key=self._turn) if self._dataset(unit[0]) == name]
            found[name] = self._samples(name, ids, [*of_calls, *(shown if name == "train" else ())])
        return found

    def _dataset(self, call: str) -> str | None:
        return self._of.get(recipe_name(call, self._of))

    def _turn(self, unit: tuple[str, int]) -> tuple[str, int, int]:
        """The call that a unit is of, the how manieth time it was made, and the part: what was made later counts."""
        call, part = unit
        first = recipe_name(call, self._of)
        return first, int(call.removeprefix(f"{first}_")) if call != first else 1, part

    def about(self, step: int) -> About:
        return About(step, self._components)

    def _samples(self, name: str, ids: Ids, made: Iterable[SequenceSample]) -> SequenceSample:
        rows: Rows = {}
        stay = frozenset(ids)
        for sample in (self._datasets[name].rows(ids), *made):
            here = sample.select([each for each in sample.ids if each in stay])
            for key in (key for key in sample.keys if form_between(key) is None):
                rows.setdefault(key, {}).update(zip(here.ids, here.parts(key), strict=True))
        prefix = EVAL_PREFIX if name == "eval" else ""
        named = {key.removeprefix(prefix): of_key for key, of_key in rows.items()}
        columns = {key: [of_key.get(sample, []) for sample in ids] for key, of_key in sorted(named.items())}
        tokens = [key for key in columns if self._texts is not None and self._forms[prefix + key] == TOKENS]
        for key in tokens:
            columns |= self._as_text(key, columns[key])
        if "responses" in tokens and "finished" in columns:
            columns[ENDED] = [
                [*self._endings(*pair)] for pair in zip(columns["responses"], columns["finished"], strict=True)
            ]
        columns[RECORD] = [[text_row(self._record(name, sample))] for sample in ids]
        return SequenceSample.from_rows(ids, columns)

    def _as_text(self, key: str, rows: Sequence[Sequence[np.ndarray]]) -> dict[str, list[list[np.ndarray]]]:
        assert self._texts is not None, "only of tokens there is a text"
        tokens = self._texts.tokens
        texts = [[text_row(tokens.decode(part)) for part in parts] for parts in rows]
        return {key + TEXT: texts, key + ENDS: [[tokens.ends(part) for part in parts] for parts in rows]}

    def _endings(self, responses: Sequence[np.ndarray], finished: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """Why each response ended: by the token that ends a text, a string that does, or its length."""
        assert self._texts is not None, "only of tokens there is a text"
        for tokens, flag in zip(responses, finished, strict=True):
            text = self._texts.decode(tokens)
            if not flag.all():
                yield text_row("length")
            elif len(before_stop(text, self._stop)) < len(text):
                yield text_row("stop")
            else:
                yield text_row("eos")

    def _record(self, name: str, sample: str) -> str:
        """What JSON does not have, as a date of a column, is told as text."""
        return json.dumps(dict(self._datasets[name].text(sample)), ensure_ascii=False, default=str)
