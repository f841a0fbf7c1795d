"""The reward model as a role: a classifier on an engine of hpcrl, or one that transformers loads, whole."""

import dataclasses
import filecmp
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcrl.algos.builder import Builder
from hpcrl.config.classifier import ClassifierConfig, labels_of
from hpcrl.config.data import tokenizer_of
from hpcrl.data.datasets import Texts
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Engine, Sequences
from hpcrl.families.reader import read_config
from hpcrl.models.classifier import Classifier, OwnTokens
from hpcrl.placement.judges import model_of
from hpcrl.workers.host import Outcome, Work

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
Arrays = Sequence[np.ndarray]
Scores = Callable[[Arrays, Arrays], np.ndarray]
"""Tokens of texts, each in two pieces → a number for each text."""


class RewardModel:
    """Scores a prompt with its response. What it reads are their tokens where it has the run's tokenizer, and else
    their text in tokens of its own; at most the `longest` last ones. `known` is one above the highest token that it
    can be given: an actor of a larger, padded vocabulary may draw one that no text has, which is left out. `engine` is
    None where transformers runs it."""

    def __init__(
        self,
        scores: Scores,
        experiment: Any,
        texts: Texts,
        *,
        tokens: OwnTokens | None,
        longest: int,
        known: int,
        engine: Engine | None = None,
    ) -> None:
        self.experiment = experiment
        self.engine = engine
        self._scores = scores
        self._longest = longest
        self._known = known
        self._texts = texts
        self._tokens = tokens

    def inference(self, work: Work, call: MFC) -> Outcome:
        """prompts, responses → model_scores [1] of every response."""
        parts = work.batch.parts("responses")
        prompts = [prompt for prompt, own in zip(work.batch.rows("prompts"), parts, strict=True) for _ in own]
        responses = [response for own in parts for response in own]
        if self._tokens is not None:
            texts = zip(map(self._texts.decode, prompts), map(self._texts.decode, responses), strict=True)
            prompts = [np.array(row, np.int32) for row in self._tokens.encode([a + b for a, b in texts])]
            responses = [row[:0] for row in prompts]
        responses = [response[response < self._known][-self._longest :] for response in responses]
        fitting = zip(prompts, responses, strict=True)
        prompts = [prompt[max(0, len(prompt) + len(end) - self._longest) :] for prompt, end in fitting]
        scores = iter(np.split(self._scores(prompts, responses), len(prompts)) if prompts else ())
        grouped = [[next(scores) for _ in own] for own in parts]
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"model_scores": grouped}))

    def close(self) -> None:
        pass


def by_engine(engine: Engine) -> Scores:
    return lambda prompts, responses: engine.forward(Sequences.from_rows(prompts, responses, labelled="after"))


def by_transformers(model: Classifier, number: type[np.floating]) -> Scores:
    def scores(prompts: Arrays, responses: Arrays) -> np.ndarray:
        rows = [[*prompt.tolist(), *response.tolist()] for prompt, response in zip(prompts, responses, strict=True)]
        return np.array(model.score(rows), number)

    return scores


def reward_model(at: Builder[Any]) -> RewardModel:
    config: ClassifierConfig = at.section
    tokenizer = tokenizer_of(at.experiment)
    assert config.path is not None and tokenizer is not None, "the checks of a configuration refuse a role without"
    folder = Path(config.path)
    own, runs = folder / "tokenizer.json", tokenizer[1] / "tokenizer.json"
    reads_tokens = own.is_file() and filecmp.cmp(own, runs, shallow=False)
    said = 1 + max(at.texts.tokens.tokenizer.get_vocab().values())
    if model_of(config) is not None:
        engine, read = dataclasses.replace(at, head="reward").engine(), read_config(folder, kind="auto")
        longest, known = read.max_positions, max(said, read.vocabulary_size)
        tokens = None if reads_tokens else OwnTokens(folder, longest)
        scores = by_engine(engine)
        return RewardModel(scores, at.experiment, at.texts, tokens=tokens, longest=longest, known=known, engine=engine)
    label = None if config.label is None else labels_of(config.path).index(config.label)
    model = Classifier(folder, label, DTYPES[config.dtype], at.device, config.micro_batch_tokens)
    scores = by_transformers(model, np.float64 if config.dtype == "fp64" else np.float32)
    own_tokens, known = None if reads_tokens else model.tokens, max(said, model.known)
    return RewardModel(scores, at.experiment, at.texts, tokens=own_tokens, longest=model.tokens.longest, known=known)
