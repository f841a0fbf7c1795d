"""Tokenizers of the kinds that published models have, made on the spot: byte-level, and as SentencePiece makes."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BEGIN, END, TURN = "<s>", "</s>", "<|turn|>"
LEARNT = ["How many apples are there?", "12 + 30 = 42", "def f(x):\n    return x", "na na na ab #", "über naïve café"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = Regex(r"(?i:'s|'t|'re|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")


def _byte_level(regex: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not regex)
    split = [pre_tokenizers.Split(WORDS, "isolated")] if regex else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, bytes_alone])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=[BEGIN, END, TURN], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LEARNT, trainer)
    return tokenizer


def gpt2() -> Tokenizer:
    return _byte_level(regex=False)


def qwen() -> Tokenizer:
    tokenizer = _byte_level(regex=True)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def llama3() -> Tokenizer:
    return _begun(_byte_level(regex=True))


def _begun(tokenizer: Tokenizer) -> Tokenizer:
    begin = [(BEGIN, tokenizer.token_to_id(BEGIN))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=begin)
    return tokenizer


def _sentence_piece(strips: bool) -> Tokenizer:
    """Spaces are letters of its own, and bytes are tokens for what it has no other for; texts may begin with a space
    that is none of theirs."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    trainer = trainers.BpeTrainer(
        vocab_size=360, special_tokens=["<unk>", *BYTES], max_token_length=8, show_progress=False
    )
    tokenizer.train_from_iterator([line for text in LEARNT for line in text.splitlines()], trainer)
    fields: dict[str, Any] = json.loads(tokenizer.to_str())
    fields |= {"added_tokens": [], "pre_tokenizer": None}
    fields["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    tokenizer = Tokenizer.from_str(json.dumps(fields))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in (BEGIN, END, TURN)])
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    strip = [decoders.Strip(" ", 1, 0)] if strips else []
    spaces, fallback = decoders.Replace("▁", " "), decoders.ByteFallback()
    tokenizer.decoder = decoders.Sequence([spaces, fallback, decoders.Fuse(), *strip])
    return _begun(tokenizer)


def llama2() -> Tokenizer:
    tokenizer = _sentence_piece(strips=True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def mistral() -> Tokenizer:
    tokenizer = _sentence_piece(strips=True)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return tokenizer


def gemma() -> Tokenizer:
    return _sentence_piece(strips=False)


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    made.__name__: made for made in (gpt2, qwen, llama3, llama2, mistral, gemma)
}


def write_tokenizer(folder: Path, kind: str) -> Path:
    """A folder as such a model has it."""
    folder.mkdir(parents=True, exist_ok=True)
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BEGIN, "eos_token": END}))
    return folder
