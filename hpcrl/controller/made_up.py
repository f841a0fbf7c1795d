"""The rows and numbers of a rehearsal: they follow from the run's seed and their names, and are the same in each.

Rows of tokens have lengths of their own. An evaluation is worse than the one before, so that the best one is what a
script has to remember.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.judge import JudgeConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.controller.data_proto import Columns
from hpcrl.controller.declared import registered_of
from hpcrl.data.form import TOKENS
from hpcrl.data.order import original
from hpcrl.data.rows.kind import EVAL_PREFIX
from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.dataflow.graph import MFC, recipe_name
from hpcrl.durable.made import Made, origins
from hpcrl.recipes.algorithm import Algorithm
from hpcrl.wire.holders import FROM_DATA
from hpcrl.wire.script_messages import CallAsked, TurnBegun

LENGTH = 4
"""Of a row that has something for each token, at most."""
VOCABULARY = 8
"""Made-up tokens are below this: every vocabulary has so many."""
ONE_EACH = ("environment_scores", "values_after")
"""Keys with a number for each sample, whoever makes them."""


class MadeUpRows:
    """Of the turns that have begun; rows that the script has computed are its own."""

    def __init__(self, algorithm: Algorithm[Any], experiment: Any) -> None:
        self._algorithm = algorithm
        self._experiment = experiment
        self._calls = {call.name: call for call in algorithm.executed(experiment)}
        self._reported = algorithm.reported(experiment)
        self._forms = algorithm.forms(experiment)
        self._samples: dict[int, Mapping[str, int]] = {}
        """Step → its samples and their places."""
        self._asked: dict[tuple[int, str], CallAsked] = {}
        self._read: dict[tuple[int, str], Mapping[str, int]] = {}
        """(step, call as asked for) → how long the responses are that it has read, by sample."""
        self._drawn: dict[tuple[int, str, str], list[np.ndarray]] = {}
        """(step, call as asked for, key) → rows, along the samples of the turn; a computation's along its own."""
        self._computed: dict[tuple[int, str, str], Mapping[str, np.ndarray]] = {}

    def call(self, asked: str) -> MFC:
        """The recipe's call of what is asked for under this name."""
        return self._calls[recipe_name(asked, self._calls)]

    def begin(self, turn: TurnBegun) -> None:
        self._samples[turn.step] = {name: place for place, name in enumerate((*turn.ids, *turn.eval_ids))}

    def ask(self, asked: CallAsked) -> None:
        """It is executed now."""
        self._asked[asked.step, asked.call] = asked

    def keep(self, asked: CallAsked, made: SequenceSample) -> None:
        """What a computation has made."""
        for key in made.keys:
            self._computed[asked.step, asked.call, key] = dict(zip(made.ids, made.rows(key), strict=True))

    def statistics(self, asked: CallAsked) -> dict[str, float]:
        """Those that the call reports under these settings."""
        names = self._reported.get(self.call(asked.call).name, ())
        return {name: self._number(asked, name) for name in names}

    def values(self, asked: CallAsked) -> tuple[str, ...]:
        """What a method of JSON gives."""
        call = self.call(asked.call)
        if not call.dispatch.values:
            return ()
        return (json.dumps(registered_of(self._algorithm, [call])[call.name].rehearsed),) * len(asked.ids)

    def rows(self, step: int, ids: Sequence[str], inputs: Columns) -> SequenceSample:
        return SequenceSample.from_rows(
            tuple(ids), {key: self._of_key(step, ids, key, runs) for key, runs in inputs.items()}
        )

    def _of_key(self, step: int, ids: Sequence[str], key: str, runs: Sequence[Made]) -> list[np.ndarray]:
        places = self._samples.get(step, {})  # none of what comes before the loop
        found = []
        for name, of in zip(ids, origins(runs), strict=True):
            maker, own_key, sample = of.call, of.key or key, original(name, of.repeats)
            if (own := self._computed.get((step, maker, own_key))) is not None:
                found.append(own[sample])
            elif sample in places:
                found.append(self._of_turn(step, maker, own_key)[places[sample]])
            else:
                found += self._draw(step, maker, own_key, sample, [sample])
        return found

    def _of_turn(self, step: int, maker: str, key: str) -> list[np.ndarray]:
        """A row for each sample of the turn."""
        if (step, maker, key) not in self._drawn:
            self._drawn[step, maker, key] = self._draw(step, maker, key, "", [*self._samples[step]])
        return self._drawn[step, maker, key]

    def _draw(self, step: int, maker: str, key: str, of: str, samples: Sequence[str]) -> list[np.ndarray]:
        form, count = self._forms[key], len(samples)
        generator = np.random.default_rng(self._seed(step, f"{maker} {key}", of))
        kind, fixed = np.dtype(form.dtype), self._fixed(maker, key)
        shape = (count, fixed or LENGTH, *form.trailing)
        if kind == np.uint8:
            return [*np.tile(np.frombuffer(b"[]" if key.endswith("turns") else b"{}", np.uint8), (count, 1))]
        if kind.kind == "b":
            drawn = generator.random(shape) < 0.5
        elif kind.kind in "iu":
            drawn = generator.integers(0, VOCABULARY, shape).astype(kind)
        else:
            drawn = self._worse(step, maker, generator.random(shape)).astype(kind)
            drawn[self._dropped(step, maker, samples)] = np.nan
        if fixed:
            return [*drawn]
        lengths = self._lengths(step, maker, key, samples)
        return [np.resize(row, (length, *form.trailing)) for row, length in zip(drawn, lengths, strict=True)]

    def _fixed(self, maker: str, key: str) -> int | None:
        """How long all rows of a key are: flags and scores are one of each sample. None where tokens decide."""
        section = self._section(maker)
        if isinstance(section, RewardConfig) and key.endswith("reward_components"):
            return len(section.parts)
        scores = isinstance(section, RewardConfig | ClassifierConfig | JudgeConfig)
        is_flag = self._forms[key].dtype == "bool" and not key.endswith("response_mask")
        if (scores and not key.endswith("token_rewards")) or is_flag or key.endswith(ONE_EACH):
            return 1
        return None if TOKENS in self._forms.values() else LENGTH

    def _lengths(self, step: int, maker: str, key: str, samples: Sequence[str]) -> list[int]:
        """Something for each token of the responses that the call has read, or, where it has read none, of its own. A
        reward may be at the end alone."""
        read = self._responses_read(step, maker)
        own = (1 + self._seed(step, maker, sample) % LENGTH for sample in samples)
        found = [read.get(sample, length) for sample, length in zip(samples, own, strict=True)]
        if not key.endswith("token_rewards"):
            return found
        at_end = np.array([self._seed(step, key, sample) % 2 for sample in samples], bool)
        at_end[self._dropped(step, maker, samples)] = True
        return np.where(at_end, 0, found).tolist()

    def _section(self, maker: str) -> Any:
        """Of the role whose call makes it; None of the data's."""
        return None if maker == FROM_DATA else getattr(self._experiment, self.call(maker).role, None)

    def _dropped(self, step: int, maker: str, samples: Sequence[str]) -> list[int]:
        """The places of samples without a score, where the settings allow that: one of four."""
        section = self._section(maker)
        if not isinstance(section, RewardConfig) or section.on_error != "drop":
            return []
        return [place for place, sample in enumerate(samples) if self._seed(step, "dropped", sample) % 4 == 0]

    def _responses_read(self, step: int, maker: str) -> Mapping[str, int]:
        """Sample → length."""
        if (step, maker) not in self._read:
            asked = self._asked.get((step, maker))
            inputs = {} if asked is None else asked.inputs
            key = next((key for key in ("responses", f"{EVAL_PREFIX}responses") if key in inputs), "")
            ids = asked.ids if asked is not None and key else ()
            rows = self._of_key(step, ids, key, inputs.get(key, ()))
            self._read[step, maker] = dict(zip(ids, map(len, rows), strict=True))
        return self._read[step, maker]

    def _number(self, asked: CallAsked, name: str) -> float:
        generator = np.random.default_rng(self._seed(asked.step, f"{asked.call} {name}", ""))
        return float(self._worse(asked.step, asked.call, generator.random()))

    def _worse(self, step: int, maker: str, numbers: Any) -> Any:
        """Those of an evaluation are below all of the one before."""
        evaluates = maker != FROM_DATA and self.call(maker).dataset == "eval"
        return (1 + numbers) / (2 * step) if evaluates else numbers

    def _seed(self, step: int, name: str, sample: str) -> int:
        return sample_seed(self._experiment.seed, step, name, sample)
