"""The judge as a role: it is asked about each response, answers in words, and its mark is the score."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.algos.builder import Builder
from hpcrl.config.environment import ends_of
from hpcrl.config.judge import JudgeConfig, drawing_of
from hpcrl.data.chat import ChatTemplate, find_template
from hpcrl.data.datasets import Texts
from hpcrl.data.samples import SequenceSample, grouped, sample_seed
from hpcrl.data.tokens import Tokens, before_stop, load_tokens
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Engine
from hpcrl.errors import DataError
from hpcrl.families.reader import read_config
from hpcrl.placement.memory import longest_sequence
from hpcrl.workers.host import Outcome, Work


class Judge:
    """Asks its model. `texts` are the run's, `tokens` the model's own, which reads at most `longest` of them."""

    def __init__(
        self, engine: Engine, experiment: Any, texts: Texts, tokens: Tokens, template: ChatTemplate | None, longest: int
    ) -> None:
        self.engine = engine
        self.experiment = experiment
        self._texts = texts
        self._tokens = tokens
        self._template = template
        self._longest = longest

    def generate(self, work: Work, call: MFC) -> Outcome:
        """prompts, responses → judge_scores [1], NaN where there is no mark, and judge_texts [bytes], UTF-8: of each
        response, drawn from a seed of its own."""
        config: JudgeConfig = self.experiment.judge
        batch, parts = work.batch, work.batch.parts("responses")
        names = [(sample, number) for sample, own in zip(batch.ids, parts, strict=True) for number in range(len(own))]
        seeds = [sample_seed(self.experiment.seed, work.step, work.call, f"{name}#{i}") for name, i in names]
        made = self.engine.generate(self._questions(batch, call, config), seeds, config.generation)
        texts = [before_stop(self._tokens.decode(tokens), config.generation.stop) for tokens in made.tokens]
        marks = [mark_in(text, config) for text in texts]
        rows: dict[str, list[np.ndarray]] = {
            "judge_scores": [np.array([mark], np.float32) for mark in marks],
            "judge_texts": [np.frombuffer(text.encode(), np.uint8) for text in texts],
        }
        together = {key: grouped(of_key, map(len, parts)) for key, of_key in rows.items()}
        count = float(len(marks))
        stats = {
            "response_length": (float(sum(map(len, made.tokens))), count),
            "finished": (float(sum(made.finished)), count),
            "marked": (float(sum(not math.isnan(mark) for mark in marks)), count),
        }
        return Outcome(SequenceSample.from_rows(batch.ids, together), stats)

    def _questions(self, batch: SequenceSample, call: MFC, config: JudgeConfig) -> list[np.ndarray]:
        """The tokens of each, the last ones where there are more than it can read."""
        stop = ends_of(self.experiment)
        texts = list[str]()
        for name, prompt, own in zip(batch.ids, batch.rows("prompts"), batch.parts("responses"), strict=True):
            row, asked = self._texts.record(call.dataset, name), self._texts.decode(prompt)
            said = (before_stop(self._texts.decode(tokens), stop) for tokens in own)
            texts += [self._question(config.question, asked, response, row) for response in said]
        encoded = self._tokens.encode_chats(texts) if self._template else self._tokens.encode_prompts(texts)
        most = max(1, self._longest - config.generation.max_new_tokens)
        return [tokens[-most:] for tokens in encoded]

    def _question(self, question: str, prompt: str, response: str, row: Mapping[str, Any]) -> str:
        try:
            text = question.format(prompt=prompt, response=response, row=row)
        except (LookupError, ValueError) as error:
            raise DataError(
                f"judge.question cannot be filled in from the row {row.get('id')!r}: {type(error).__name__}: {error}.",
                f"The row has {', '.join(map(str, row))}. Set judge.question, or give the rows what it names.",
            ) from None
        return self._template.prompt([{"role": "user", "content": text}]) if self._template else text

    def close(self) -> None:
        pass


def mark_in(text: str, config: JudgeConfig) -> float:
    """The last mark of an answer; NaN where it has none, or it is out of bounds."""
    found = re.findall(config.mark, text)
    try:
        mark = float(found[-1]) if found else math.nan
    except ValueError:
        return math.nan
    return mark if config.least <= mark <= config.most else math.nan


def judge(at: Builder[Any]) -> Judge:
    config: JudgeConfig = at.section
    folder = Path(config.path)
    tokens = load_tokens(folder, f"{at.role}.path")
    engine = at.engine(tokens, folder)
    model = read_config(folder, config.family, f"{at.role}.family", config.model)
    drawing = drawing_of(at.experiment, at.role)
    assert drawing is not None, "a judge has options of its own"
    longest = longest_sequence(model, drawing.max_prompt_tokens, drawing.generation)
    return Judge(engine, at.experiment, at.texts, tokens, find_template(folder, None, {}), longest)
