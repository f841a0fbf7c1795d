"""What a line of a source may have, by its columns, and how it reads as prompt and answer. Knows no files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec


class Message(msgspec.Struct):
    """One turn of a chat; what else it has, a chat template may use."""

    role: str
    content: str | None = None


class RowLine(msgspec.Struct, kw_only=True):
    """What every line may have."""

    id: str | int | None = None

    @staticmethod
    def normal(record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The record with `prompt`, a text or messages, and with `answer`, if it has one."""
        return record

    def reads_as(self) -> type:
        """Of what type the prompt is in `normal`, the same in all rows of a source."""
        return type(getattr(self, "prompt", None))


class PromptLine(RowLine, kw_only=True):
    """A prompt: a text, or the messages before the response. Other kinds of line add fields to it."""

    prompt: str | list[Message]

    def __post_init__(self) -> None:
        """Raises ValueError, which the decoder tells with the line."""
        if not self.prompt:
            raise ValueError("prompt is empty")


class AnswerLine(PromptLine, kw_only=True):
    """A prompt and its answer."""

    answer: str


class TaskLine(PromptLine, kw_only=True):
    """A prompt as verl has it, with what a response is compared with."""

    class Truth(msgspec.Struct):
        ground_truth: Any

    reward_model: Truth

    @staticmethod
    def normal(record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"answer": str(record["reward_model"]["ground_truth"]), **record}


class ChatLine(RowLine, kw_only=True):
    """A whole chat. Where its last message is the assistant's, that is the answer, and the prompt what comes before."""

    needs_answer: ClassVar[bool] = False
    messages: list[Message]

    def __post_init__(self) -> None:
        """Raises ValueError, which the decoder tells with the line."""
        roles = [message.role for message in self.messages]
        if all(role == ASSISTANT for role in roles[:1]):
            raise ValueError("messages need one before the assistant's first")
        if self.needs_answer and roles[-1] != ASSISTANT:
            raise ValueError(f"the last of messages is the {roles[-1]}'s, and an answer is the assistant's")

    @staticmethod
    def normal(record: Mapping[str, Any]) -> Mapping[str, Any]:
        messages = record["messages"]
        if messages[-1]["role"] != ASSISTANT:
            return {**record, "prompt": messages}
        return {"answer": messages[-1].get("content") or "", **record, "prompt": messages[:-1]}


class AnsweredChatLine(ChatLine, kw_only=True):
    """A whole chat that ends with an answer."""

    needs_answer: ClassVar[bool] = True


ASSISTANT = "assistant"
Lines = tuple[type[RowLine], ...]

PROMPTED: Lines = (PromptLine, ChatLine)
"""What responses are generated to."""
JUDGED: Lines = (AnswerLine, TaskLine, AnsweredChatLine)
"""What responses are generated to and compared with."""
ANSWERED: Lines = (AnswerLine, AnsweredChatLine)
"""What is learnt."""


def needed(line: type[RowLine]) -> list[str]:
    """The columns without which a row is no such line."""
    return [field.name for field in msgspec.structs.fields(line) if field.required]


def recognised(lines: Sequence[type[RowLine]], columns: Iterable[str], named: Iterable[str]) -> Lines:
    """Those of the lines that a row with these columns may be; columns that the user has `named` decide."""
    seen, chosen = set(columns), set(named)
    found = tuple(line for line in lines if seen.issuperset(needed(line)))
    found = tuple(line for line in found if chosen & set(needed(line))) or found
    # Of two that share columns, the first says more.
    return tuple(line for i, line in enumerate(found) if not any(_share(line, other) for other in found[:i]))


def _share(line: type[RowLine], other: type[RowLine]) -> bool:
    return not set(needed(line)).isdisjoint(needed(other))


def described(lines: Sequence[type[RowLine]]) -> str:
    """What columns a row may have, in words: `chosen and rejected (and maybe prompt), or messages`."""
    every = [needed(line) for line in lines]
    least = [columns for columns in every if not any(set(other) < set(columns) for other in every)]
    return ", or ".join(_with_more(columns, every) for columns in least)


def in_columns(text: str, lines: Lines, fields: Mapping[str, str]) -> str:
    """A text about such lines, with the columns called as the user calls them, by `fields`."""
    own = {field.name for line in lines for field in msgspec.structs.fields(line)} & fields.keys()
    return re.sub(rf"\b({'|'.join(map(re.escape, own))})\b", lambda found: fields[found[0]], text) if own else text


def _with_more(columns: list[str], every: Sequence[list[str]]) -> str:
    """These columns, and those that another kind of line has besides them."""
    besides = sorted({name for other in every if set(columns) < set(other) for name in other} - set(columns))
    return " and ".join(columns) + (f" (and maybe {' and '.join(besides)})" if besides else "")
