"""What a generate call reads and draws of each text of a step: a response, a segment or a turn of it, or a judge's
answer to it. Pure. Shapes: X texts."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hpcrl.config.environment import ENVIRONMENT, EnvironmentConfig
from hpcrl.config.fields import section
from hpcrl.config.judge import JudgeConfig, drawing_of
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes.environment import is_turn, turn_of

CHARACTERS = 4
"""Of a token in the question of a judge."""


class Span(NamedTuple):
    """The tokens of each response that a call draws, as far as it has them."""

    first: int
    end: int

    @property
    def shares(self) -> bool:
        """Whether what it reads is the same for all texts of a row: it is the prompt."""
        return not self.first

    def of(self, prompts_X: np.ndarray, responses_X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that are read, and that are drawn. Responses that are begun are read with their prompts."""
        return prompts_X + self.first, np.minimum(responses_X, self.end) - self.first


WHOLE = Span(0, 2**62)


class Turn(NamedTuple):
    """A turn of a chat, from 0 on, all of which have as much of a response."""

    number: int
    turns: int

    @property
    def shares(self) -> bool:
        return not self.number

    def of(self, prompts_X: np.ndarray, responses_X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, end = (responses_X * number // self.turns for number in (self.number, self.number + 1))
        return prompts_X + first, end - first


class Answer(NamedTuple):
    """A judge's, to a question about each response; all in tokens."""

    question: int
    longest: int
    """That the judge reads."""
    answer: int

    @property
    def shares(self) -> bool:
        return False

    def of(self, prompts_X: np.ndarray, responses_X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked = np.minimum(prompts_X + responses_X + self.question, self.longest)
        return asked, np.full(len(asked), self.answer)


Drawn = Span | Turn | Answer


def drawn_by(call: MFC, experiment: Any, positions: int) -> Drawn:
    """By a call of a model that takes so many tokens."""
    judge, turns = section(experiment, call.role, JudgeConfig), _turns(experiment)
    if judge is not None:
        most = judge.generation.max_new_tokens
        return Answer(len(judge.question) // CHARACTERS, max(1, positions - most), most)
    if turns > 1:
        return Turn(turn_of(call), turns)
    drawing = drawing_of(experiment, call.role)
    if call.segment is None or drawing is None:
        return WHOLE
    number, until = call.segment.number, drawing.generation.until
    return Span(until(number - 1), WHOLE.end if call.segment.last else until(number))


def assumed(call: MFC, experiment: Any) -> Iterator[str]:
    """What is taken for granted of it, in a sentence."""
    if call.kind != "generate" or is_turn(call):
        return
    match drawn_by(call, experiment, 0):
        case Answer(question, _, answer):
            yield (
                f"{call.name} counts as if it read each response with a question of {question} tokens and drew "
                f"{call.role}.generation.max_new_tokens = {answer}."
            )
        case Turn(_, turns):
            yield f"{call.name} counts as if environment.max_turns = {turns} turns had equal shares of a response."


def _turns(experiment: Any) -> int:
    environment = section(experiment, ENVIRONMENT, EnvironmentConfig)
    return 1 if environment is None or environment.function is None else environment.max_turns
