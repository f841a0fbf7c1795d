"""The reward model as a role: a classifier that transformers loads, be it one that hpcrl has trained or any other."""

import filecmp
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
from hpcrl.models.classifier import Classifier
from hpcrl.workers.host import Outcome, Work

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class RewardModel:
    """Scores a prompt with its response. What it reads are their tokens where it has the run's tokenizer, and else
    their text in tokens of its own."""

    engine = None

    def __init__(self, model: Classifier, experiment: Any, texts: Texts, reads_tokens: bool) -> None:
        self.experiment = experiment
        self._model = model
        self._texts = texts
        self._reads_tokens = reads_tokens

    def inference(self, work: Work, call: MFC) -> Outcome:
        """prompts, responses → model_scores [1] of every response."""
        parts = work.batch.parts("responses")
        pairs = [
            (prompt, response)
            for prompt, of_sample in zip(work.batch.rows("prompts"), parts, strict=True)
            for response in of_sample
        ]
        if self._reads_tokens:
            rows = [[*prompt.tolist(), *response.tolist()] for prompt, response in pairs]
        else:
            rows = self._model.encode([self._texts.decode(part) + self._texts.decode(end) for part, end in pairs])
        scores = iter([np.array([score], np.float32) for score in self._model.score(rows)])
        grouped = [[next(scores) for _ in of_sample] for of_sample in parts]
        return Outcome(SequenceSample.from_rows(work.batch.ids, {"model_scores": grouped}))

    def close(self) -> None:
        pass


def reward_model(at: Builder[Any]) -> RewardModel:
    config: ClassifierConfig = at.section
    tokenizer = tokenizer_of(at.experiment)
    assert config.path is not None and tokenizer is not None, "the checks of a configuration refuse a role without"
    folder, names = Path(config.path), labels_of(config.path)
    label = None if config.label is None else names.index(config.label)
    model = Classifier(folder, label, DTYPES[config.dtype], at.device, config.micro_batch_tokens)
    own, runs = folder / "tokenizer.json", tokenizer[1] / "tokenizer.json"
    same = own.is_file() and filecmp.cmp(own, runs, shallow=False)
    return RewardModel(model, at.experiment, at.texts, same)
