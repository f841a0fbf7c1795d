"""Chats to texts, by the tokenizer's own template, with the part of transformers that needs no torch. It is sandboxed.

What a template is given depends on the row and the settings alone: it does not learn today's date.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.data.rows.lines import ASSISTANT
from hpcrl.errors import DataError

Span = tuple[int, int]
"""(first character, the one behind the last)."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_SPECIAL = re.compile(r"\w+_token")
_ANY, _PLACE = {"role": "user", "content": "-"}, "PLACE-OF-AN-ANSWER"
_ONE_AT_A_TIME = threading.Lock()
"""transformers keeps one compiled template for all who render the same source, and it marks answers in that."""


class ChatTemplate:
    """A Jinja template with the special tokens and arguments that it may use."""

    def __init__(self, source: str, special: Mapping[str, str], arguments: Mapping[str, Any]) -> None:
        # Templates ask whether there is a clock before they read it, and have a date of their own where there is none.
        self._source = source.replace("strftime_now", "no_clock")
        self._given = {**special, **arguments}
        self._marks_answers = bool(_GENERATION.search(source))

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text up to where the response begins. Raises DataError."""
        return self._render(messages, add_generation_prompt=True)[0]

    def following(self, messages: Sequence[Mapping[str, Any]], more: Sequence[Mapping[str, Any]]) -> str:
        """What comes after the prompt of `messages` where `more` follow them. Raises DataError."""
        prompt, whole = self.prompt(messages), self._render([*messages, *more])[0]
        if not whole.startswith(prompt):
            raise _refused(
                "the chat template writes the prompt in another way where an answer follows, so that it cannot be told "
                "where that begins."
            )
        return whole[len(prompt) :]

    def between(self, message: Mapping[str, Any]) -> str:
        """What stands between an answer and the next one where this message comes after it: what ends the answer, the
        message, and what asks for the next. Raises DataError."""
        whole, _ = self._render([_ANY, {"role": ASSISTANT, "content": _PLACE}, message], add_generation_prompt=True)
        before, _, after = whole.rpartition(_PLACE)
        if not before or _PLACE in before:
            raise _refused("the chat template does not write an answer as it is, so that nothing can follow it.")
        return after

    def answered(self, messages: Sequence[Mapping[str, Any]], *, every: bool) -> tuple[str, list[Span]]:
        """The whole chat, and where in it the assistant's messages are: all, or the last one alone.

        A template that marks them (`{% generation %}`) is believed; else a message is what comes after the text that
        asks for it. Raises DataError where a template changes that text later, so that nobody can tell.
        """
        whole, marked = self._render(messages, return_assistant_tokens_mask=self._marks_answers)
        if self._marks_answers:
            spans = [(start, end) for start, end in marked if start < end]
        else:
            turns = [i for i, message in enumerate(messages) if message["role"] == ASSISTANT]
            spans = [self._span(messages, turn, whole) for turn in (turns if every else turns[-1:])]
        if not spans:
            raise _refused("the chat template marks no answer in the row.")
        return whole, spans if every else spans[-1:]

    def _span(self, messages: Sequence[Mapping[str, Any]], turn: int, whole: str) -> Span:
        before = self.prompt(messages[:turn])
        through = whole if turn == len(messages) - 1 else self._render(messages[: turn + 1])[0]
        if not (through.startswith(before) and whole.startswith(through)):
            raise _refused(
                f"the chat template writes message {turn + 1} in another way than where it was asked for, so that it "
                "cannot be told which tokens the model is to learn."
            )
        return len(before), len(through)

    def _render(self, messages: Sequence[Mapping[str, Any]], **how: Any) -> tuple[str, Sequence[Span]]:
        # Only rows that are chats need it, and it takes a second.
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            chat: Any = [dict(message) for message in messages]
            with _ONE_AT_A_TIME:
                found: Any = render_jinja_template([chat], chat_template=self._source, **how, **self._given)
        except Exception as error:  # a template is code of the user's
            raise _refused(f"the chat template fails: {type(error).__name__}: {error}.") from error
        texts, marked = found
        return texts[0], marked[0] if marked else ()


def _refused(text: str) -> DataError:
    return DataError(
        text, "Change the row, or submit a new run with another data.chat_template, data.template_args or data.learn."
    )


def find_template(folder: Path, file: Path | None, arguments: Mapping[str, Any]) -> ChatTemplate | None:
    """The template in a file, else that of the tokenizer in the folder; None where it has none.

    Raises:
        DataError: a file cannot be read.
    """
    config = _object(folder / "tokenizer_config.json")
    source: Any = None
    for path in [file] if file else [folder / "chat_template.jinja"]:
        if file or path.is_file():
            source = _text(path)
    if source is None:
        source = _object(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(source, list):
        source = {each["name"]: each["template"] for each in source}.get("default")
    if source is None:
        return None
    named = {**_object(folder / "special_tokens_map.json"), **config}
    contents = {name: _content(value) for name, value in named.items() if _SPECIAL.fullmatch(name)}
    return ChatTemplate(source, {name: text for name, text in contents.items() if text is not None}, arguments)


def _content(token: Any) -> str | None:
    """The text of a special token, which may be an object."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(_text(path), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise DataError(f"{path} is no JSON object: {error}.", "Correct it.") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise DataError(f"cannot read {path}: {error}.", "Put a text in UTF-8 there.") from error
