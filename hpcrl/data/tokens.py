"""Text to tokens and back, with the `tokenizers` library alone: transformers would bring torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer
from tokenizers.models import BPE

from hpcrl.config.data import of_older_files
from hpcrl.errors import DataError

HALF = "\ufffd"
"""What stands at the end of a text whose last character has begun and not ended."""
BYTES = 4
"""Of a character, at most."""
LEAD = "\n"
"""Stands for the text before an answer."""


@dataclass(frozen=True)
class Tokens:
    """A folder's tokenizer. Any of `eos_ids` ends a text; the first is the one that is written.

    `prefix` is what it puts before every text: a BOS token, or nothing. `lead` are the tokens of LEAD where a text
    that goes on is encoded otherwise than one that begins: tokenizers made of SentencePiece's give that a space,
    which they take away again. An answer goes on.
    """

    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    prefix: tuple[int, ...] = ()
    lead: tuple[int, ...] = ()

    @property
    def eos_id(self) -> int:
        return self.eos_ids[0]

    def encode_prompts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """One int32 array [tokens] per text, with the prefix once."""
        found = []
        for encoding in self._encoded(list(texts)):
            begun = tuple(encoding.ids[: len(self.prefix)]) == self.prefix
            found.append(np.array(encoding.ids if begun else [*self.prefix, *encoding.ids], dtype=np.int32))
        return found

    def encode_chats(self, texts: Sequence[str]) -> list[np.ndarray]:
        """One int32 array [tokens] per text, which has all its special tokens already."""
        return [np.array(encoding.ids, dtype=np.int32) for encoding in self._encoded(list(texts))]

    def encode_answers(self, texts: Sequence[str]) -> list[np.ndarray]:
        """One int32 array [tokens] per text, ended by EOS."""
        return [np.append(ids, np.int32(self.eos_id)) for ids, _ in self.encode_on(texts)]

    def encode_on(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of texts that go on after others, each: int32 tokens [T], and the character [T] at which each begins."""
        found, count = [], len(self.lead)
        lead = LEAD if count else ""
        for text, encoding in zip(texts, self._encoded([lead + text for text in texts]), strict=True):
            starts = [start - len(lead) for start, _ in encoding.offsets]
            # Where a token has the end of the one text and the beginning of the other, nobody can tell them apart.
            if tuple(encoding.ids[:count]) != self.lead or min(starts[count:], default=0) < 0:
                (encoding,) = self._encoded([text])
                found.append((np.array(encoding.ids, np.int32), np.array([each for each, _ in encoding.offsets])))
            else:
                found.append((np.array(encoding.ids[count:], np.int32), np.array(starts[count:], np.int64)))
        return found

    def _encoded(self, texts: list[str]) -> list[Encoding]:
        return self.tokenizer.encode_batch(texts, add_special_tokens=False)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text without special tokens, with its leading space unless it is one that begins: with `prefix`."""
        listed = [int(token) for token in ids]
        return self.decode_on(self._before(listed), listed)

    def decode_on(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """What the text of tokens says after that of others."""
        return self._text([*before, *ids])[len(self._text(before)) :] if before else self._text(ids)

    def ends(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """int32 [tokens]: the characters of `decode(ids)` that are there with each token. A character of several tokens
        is there with its last one."""
        listed = [int(token) for token in ids]
        text, before = self.decode(listed), self._before(listed)
        pieces = self._pieces_by_pairs(listed, before)
        if HALF in text or "".join(pieces) != text:
            pieces = self._pieces_in_order(listed, before)
        ends = np.minimum(np.cumsum([len(piece) for piece in pieces], dtype=np.int32), len(text))
        ends[-1:] = len(text)
        return ends

    def _before(self, listed: Sequence[int]) -> tuple[int, ...]:
        """What a text goes on after, if it does not begin."""
        return () if tuple(listed[: len(self.prefix)]) == self.prefix else self.lead

    def _pieces_by_pairs(self, listed: Sequence[int], before: Sequence[int]) -> list[str]:
        """What each token adds to the one before it: right where no token depends on others, which is nearly always."""
        contexts = [list(before), *([token] for token in listed[:-1])][: len(listed)]
        pairs = [[*context, token] for context, token in zip(contexts, listed, strict=True)]
        shown = self.tokenizer.decode_batch([*contexts, *pairs], skip_special_tokens=True)
        return [whole[len(first) :] for first, whole in zip(shown[: len(listed)], shown[len(listed) :], strict=True)]

    def _pieces_in_order(self, listed: Sequence[int], before: Sequence[int]) -> list[str]:
        """What each token adds to the last ones that ended a character; one that does not end it adds nothing."""
        pieces, context, pending = list[str](), list(before), list[int]()
        for token in listed:
            pending.append(token)
            piece = self.decode_on(context, pending)
            begun = len(pending) < BYTES and (not piece or piece.endswith(HALF))
            pieces.append("" if begun else piece)
            if not begun:
                context, pending = pending, []
        return pieces

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def before_stop(text: str, stop: Sequence[str]) -> str:
    """The text of a response before the first of the strings that end one."""
    return text[: min((at for string in stop if (at := text.find(string)) >= 0), default=len(text))]


SAYS_THE_END = ("tokenizer_config.json", "config.json", "generation_config.json")
"""The files, beside tokenizer.json, that name what ends a text; none of them has to be there."""


TOKENIZER_FILES = (
    "tokenizer.json",
    *SAYS_THE_END,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""All that a run may read of a tokenizer's folder: besides those it reads itself, what exports take along."""


def tokenizer_files(folder: Path) -> list[Path]:
    """Of a folder: tokenizer.json, which must be there, and of the others those that are."""
    needed, *others = (folder / name for name in TOKENIZER_FILES)
    return [needed, *(path for path in others if path.is_file())]


def load_tokens(folder: Path | str, knob: str = "data.tokenizer", otherwise: str = "") -> Tokens:
    """The tokenizer of a Hugging Face folder.

    What ends a text is named by tokenizer_config.json, config.json and generation_config.json; the first of them that
    names anything says what is written, and all together what is understood.

    Raises:
        DataError: where the folder has no readable tokenizer.json or names no EOS token. It advises what to do
            `otherwise` than to complete the folder: by default, to submit a new run with another `knob`.
    """
    folder, otherwise = Path(folder), otherwise or f"submit a new run with another {knob}"
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise DataError(
            f"{path} is no tokenizer: {error}.{of_older_files(folder)}",
            f"Put Hugging Face's tokenizer.json there, or {otherwise}.",
        ) from error
    probe = tokenizer.encode("a")
    mask = [*probe.special_tokens_mask, 0]
    eos_ids = _eos_ids(folder, tokenizer)
    if not eos_ids:
        raise DataError(
            f"{folder} names no token that ends a text.",
            "Give tokenizer_config.json an eos_token of the vocabulary, or config.json an eos_token_id, or "
            f"{otherwise}.",
        )
    prefix = tuple(probe.ids[: mask.index(0)])
    return Tokens(tokenizer, eos_ids, prefix, _lead(tokenizer) if prefix else ())


def _lead(tokenizer: Tokenizer) -> tuple[int, ...]:
    lead, alone, after = (tokenizer.encode(text, add_special_tokens=False).ids for text in (LEAD, "a", f"{LEAD}a"))
    return () if after == lead + alone or after[: len(lead)] != lead else tuple(lead)


def _eos_ids(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    tokenizer_config, *others = SAYS_THE_END
    named = _read(folder / tokenizer_config).get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    found = [] if text is None else [tokenizer.token_to_id(text)]
    for file in others:
        listed = _read(folder / file).get("eos_token_id")
        found += listed if isinstance(listed, list) else [listed]
    return tuple(dict.fromkeys(int(token) for token in found if token is not None))


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}.", "Correct it.") from error
    return found if isinstance(found, dict) else {}


def no_tokens() -> Tokens:
    """Of a run that has no texts."""
    return Tokens(Tokenizer(BPE()), ())
