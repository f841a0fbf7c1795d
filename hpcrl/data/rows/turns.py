"""Records to tokens: the prompt of each, and of a chat that is learnt the answer, with what of it counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hpcrl.data.chat import ChatTemplate, Span
from hpcrl.data.tokens import Tokens
from hpcrl.errors import DataError


@dataclass(frozen=True, eq=False)
class TextRow:
    """A record, and the tokens that follow from its prompt or chat alone."""

    record: Mapping[str, Any]
    prompt: np.ndarray
    """int32 [tokens]."""
    answer: np.ndarray | None = None
    """int32 [tokens], of a chat that is learnt: all from the first message that is."""
    learnt: np.ndarray | None = None
    """bool [tokens of the answer]."""
    completions: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)
    """Field → int32 [tokens] of each chat in it, which follows the prompt; fields with texts are not in it."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What a model sees of a record. Knows no files."""

    tokens: Tokens
    prompt_template: str
    chat: ChatTemplate | None
    learn: Literal["last", "all"]

    def prompts(self, records: Sequence[Mapping[str, Any]], completions: Sequence[str] = ()) -> list[TextRow]:
        """Each up to where the response begins, and what follows it in these fields. Raises DataError."""
        texts = [record["prompt"] for record in records if isinstance(record["prompt"], str)]
        plain = iter(self.tokens.encode_prompts([self.prompt_template.replace("{prompt}", text) for text in texts]))
        chats = [self._chat.prompt(record["prompt"]) for record in records if not isinstance(record["prompt"], str)]
        chatted = iter(self.tokens.encode_chats(chats))
        return [
            TextRow(
                record,
                next(plain if isinstance(record["prompt"], str) else chatted),
                completions={name: self._following(record, name) for name in completions if _has_chats(record[name])},
            )
            for record in records
        ]

    def _following(self, record: Mapping[str, Any], name: str) -> list[np.ndarray]:
        """What a model would have said of each chat in the field, through its last EOS."""
        texts = [self._chat.following(record["prompt"], messages) for messages in record[name]]
        return [self._learnt(text, [(0, len(text))])[0] for text in texts]

    def answered(self, records: Sequence[Mapping[str, Any]]) -> list[TextRow]:
        """Of whole chats, up to where the first answer begins that is learnt, and that. Raises DataError."""
        return [self._answered(record) for record in records]

    def _answered(self, record: Mapping[str, Any]) -> TextRow:
        whole, spans = self._chat.answered(record["messages"], every=self.learn == "all")
        begin = spans[0][0]
        (prompt,) = self.tokens.encode_chats([whole[:begin]])
        answer, learnt = self._learnt(whole[begin:], [(start - begin, end - begin) for start, end in spans])
        return TextRow(record, prompt, answer, learnt)

    def _learnt(self, text: str, spans: Sequence[Span]) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a text through the last that counts, and which do: those of the spans, each up to its EOS.

        A template's line break behind an EOS is not learnt: no response goes on there. A last answer without EOS gets
        one.
        """
        ((tokens, starts),) = self.tokens.encode_on([text])
        learnt = np.zeros(len(tokens), np.bool_)
        ends = np.isin(tokens, self.tokens.eos_ids)
        for start, end in spans:
            here = np.flatnonzero((starts >= start) & (starts < end))
            last = np.flatnonzero(ends[here])
            learnt[here[: last[-1] + 1] if len(last) else here] = True
        count = int(np.flatnonzero(learnt)[-1]) + 1 if learnt.any() else 0
        tokens, learnt = tokens[:count], learnt[:count]
        if count and not ends[count - 1]:
            tokens, learnt = np.append(tokens, np.int32(self.tokens.eos_id)), np.append(learnt, True)
        return tokens, learnt

    @property
    def _chat(self) -> ChatTemplate:
        if self.chat is None:
            raise DataError(
                "the rows are chats, but the tokenizer has no chat template.",
                "Submit a new run with a data.chat_template, or with a data.tokenizer that has one.",
            )
        return self.chat


def _has_chats(sides: Sequence[Any]) -> bool:
    return not isinstance(sides[0], str)
