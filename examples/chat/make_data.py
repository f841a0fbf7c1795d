"""Chats and preferences from nothing, a tokenizer with a chat template, and a small model with random parameters.

    python examples/chat/make_data.py --out runs/chat

writes chats.jsonl (what is imitated), pairs.jsonl (what is preferred), prompts.jsonl (what is answered), each with rows
to evaluate on beside it (…-test.jsonl), and model/ (Hugging Face format, family qwen2). The user says some letters; an
answer is eight letters, the first of which is the user's last. Of two answers, the one with more vowels is preferred.
"""

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

LETTERS, VOWELS = "abcdefghij", "aei"
LENGTH = 8
USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<pad>"
TEMPLATE = """\
{% for message in messages %}{% if message.role == 'user' %}USER{{ message.content }}{% else %}\
ASSISTANT{% generation %}{{ message.content }}END{% endgeneration %}{% endif %}{% endfor %}\
{% if add_generation_prompt %}ASSISTANT{% endif %}"""
Row = dict[str, Any]


def said(draw: random.Random, count: int) -> str:
    return "".join(draw.choice(LETTERS) for _ in range(count))


def asked(draw: random.Random) -> Row:
    return {"role": "user", "content": said(draw, draw.randint(1, 4))}


def answer(draw: random.Random, question: Row) -> str:
    return question["content"][-1] + said(draw, LENGTH - 1)


def chat(draw: random.Random) -> Row:
    """One exchange or two."""
    messages: list[Row] = []
    for _ in range(draw.randint(1, 2)):
        messages.append(asked(draw))
        messages.append({"role": "assistant", "content": answer(draw, messages[-1])})
    return {"messages": messages}


def prompt(draw: random.Random) -> Row:
    return {"prompt": [asked(draw)]}


def vowels(text: str) -> int:
    return sum(text.count(vowel) for vowel in VOWELS)


def pair(draw: random.Random) -> Row:
    question = asked(draw)
    worse, better = sorted((answer(draw, question), answer(draw, question)), key=vowels)
    if vowels(worse) == vowels(better):
        return pair(draw)
    return {"prompt": [question], "chosen": better, "rejected": worse}


def write_rows(folder: Path, name: str, make: Callable[[random.Random], Row], count: int, seed: int) -> None:
    """The rows to train on, and others, drawn from another seed, to evaluate on."""
    for ending, number in (("", count), ("-test", 200)):
        draw = random.Random(f"{name}{ending}{seed}")
        text = "".join(json.dumps(make(draw)) + "\n" for _ in range(number))
        (folder / f"{name}{ending}.jsonl").write_text(text)


def write_tokenizer(folder: Path) -> Tokenizer:
    """A token for every letter, and one for each mark of the template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(LETTERS)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in (USER, ASSISTANT, END, PAD)])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": END, "pad_token": PAD, "unk_token": PAD}
    config = {"tokenizer_class": "Qwen2Tokenizer", "clean_up_tokenization_spaces": False, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    template = TEMPLATE.replace("USER", USER).replace("ASSISTANT", ASSISTANT).replace("END", END)
    (folder / "chat_template.jinja").write_text(template)
    return tokenizer


def write_model(tokenizer: Tokenizer, folder: Path, seed: int) -> None:
    """Random parameters for the vocabulary: 0.1 million of them."""
    from hpcrl.families.config import DecoderConfig
    from hpcrl.models.pretrained import write_random_pretrained

    config = DecoderConfig(
        family="qwen2",
        vocabulary_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=192,
        blocks=2,
        heads=4,
        kv_heads=4,
        head_dim=16,
        max_positions=64,
        qkv_bias=True,
        tied=True,
        carried={"eos_token_id": tokenizer.token_to_id(END), "pad_token_id": tokenizer.token_to_id(PAD)},
    )
    write_random_pretrained(folder, config, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/chat"), help="the folder to write to")
    parser.add_argument("--seed", type=int, default=1, help="of the rows and of the model's random parameters")
    arguments = parser.parse_args()
    folder, seed = arguments.out, arguments.seed
    tokenizer = write_tokenizer(folder / "model")
    write_rows(folder, "chats", chat, 4096, seed)
    write_rows(folder, "pairs", pair, 4096, seed)
    write_rows(folder, "prompts", prompt, 4096, seed)
    write_model(tokenizer, folder / "model", seed)
    print(
        f"{folder}: 4096 chats, pairs and prompts, 200 more of each to test with, {tokenizer.get_vocab_size()} tokens"
    )


if __name__ == "__main__":
    main()
