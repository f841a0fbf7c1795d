"""A model that is asked about responses and answers in words, as a component of the reward."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Any, ClassVar, NamedTuple

from hpcrl.config.data import DataConfig
from hpcrl.config.fields import ChangeClass, ModelText, section
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig
from hpcrl.errors import Problem

ANSWERED = "response_length", "finished", "marked"
"""The statistics of a call that asks."""


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(ModelConfig):
    """A model that is asked about each response; the number in its answer is the score."""

    path: ModelText = ""
    """A folder or name as actor.path is one. Read only where a component of the reward has role: judge."""
    question: Annotated[str, ChangeClass.NUMBERS] = (
        "Question:\n{prompt}\n\nAnswer:\n{response}\n\n"
        "How good is the answer? Say why in a sentence, then end with a line of the form: Mark: 0 to 10.\n"
    )
    """What it is asked, with {prompt}, {response} and the fields of the row as {row[NAME]} in it; a chat of one message
    where its tokenizer has a chat template. Of what is longer than it can read the beginning is left out."""
    mark: Annotated[str, ChangeClass.NUMBERS] = r"Mark:\s*(-?\d+(?:\.\d+)?)"
    """A regular expression whose group is the mark; of several in an answer the last one counts."""
    least: Annotated[float, ChangeClass.NUMBERS] = 0.0
    """A lower number is no mark."""
    most: Annotated[float, ChangeClass.NUMBERS] = 10.0
    """A higher number is no mark. An answer without a mark gives its response no score of the judge's."""
    generation: Annotated[GenerationConfig, ChangeClass.NUMBERS] = GenerationConfig(max_new_tokens=128, greedy=True)
    """How its answers are sampled."""

    changes: ClassVar[ChangeClass] = ChangeClass.IDENTITY


class Drawing(NamedTuple):
    """How a role draws texts: its options, and the most tokens of what it goes on from (None: no bound)."""

    generation: GenerationConfig
    max_prompt_tokens: int | None


def drawing_of(experiment: Any, role: str) -> Drawing | None:
    """A judge draws by options of its own, after a question; every other role after the prompts of the data."""
    generation = section(experiment, "generation", GenerationConfig)
    data, judge = section(experiment, "data", DataConfig), section(experiment, role, JudgeConfig)
    longest = None if data is None else data.max_prompt_tokens
    if judge is None:
        return None if generation is None else Drawing(generation, longest)
    response = 0 if generation is None else generation.max_new_tokens
    return Drawing(judge.generation, None if longest is None else len(judge.question) + longest + response)


def slots_of(experiment: Any, role: str) -> int:
    """How many texts a worker of a role draws at the same time."""
    drawing = drawing_of(experiment, role)
    return (GenerationConfig() if drawing is None else drawing.generation).slots


def judge_problems(role: str, config: JudgeConfig, component: str) -> Iterator[Problem]:
    """What is wrong with a section of this name; `component` has this role."""
    if not config.path:
        path = f"{role}.path"
        yield Problem((path,), f"{path} is not set, but {component} asks its model.", f"Set {path}.")
    if wrong := _wrong_question(config.question):
        key = f"{role}.question"
        yield Problem((key,), f"{key} {wrong}", f"Set {key}; a brace that is meant is written twice.")
    if wrong := _wrong_mark(config.mark):
        key = f"{role}.mark"
        yield Problem((key,), f"{key} = {config.mark} {wrong}", f"Set {key}.")
    if config.least >= config.most:
        least, most = f"{role}.least", f"{role}.most"
        text = f"{least} = {config.least:g} must be below {most} = {config.most:g}."
        yield Problem((least, most), text, f"Set {least} or {most}.")


def _wrong_question(question: str) -> str:
    try:
        named = [name for _, name, *_ in Formatter().parse(question) if name is not None]
    except ValueError as error:
        return f"cannot be filled in ({error})."
    strange = [name for name in named if re.fullmatch(r"prompt|response|row\[[^\[\]]+\]", name) is None]
    if strange:
        return f"has {{{strange[0]}}}; there are {{prompt}}, {{response}} and {{row[NAME]}}."
    return "" if "response" in named else "must have {response} in it, or every answer would be of the same question."


def _wrong_mark(mark: str) -> str:
    try:
        groups = re.compile(mark).groups
    except re.error as error:
        return f"is no regular expression ({error})."
    return "" if groups == 1 else f"must have one group, the mark; it has {groups}."
