"""Two-digit addition from nothing: data, a tokenizer trained on it, and a small model with random parameters.

    python examples/addition/make_data.py --out runs/addition

writes train.jsonl, test.jsonl and model/ (Hugging Face format, family qwen2). The sums of the test are never trained
on. A row's answer is "#### SUM", what the reward of GSM8K looks for.
"""

import argparse
import json
import random
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TWO_DIGITS = range(10, 100)
TEST_ROWS = 500
SPLIT_SEED = 0
PAD, EOS, HASHES = "<pad>", "<eos>", "#### "


def rows() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """All sums of two-digit numbers, in a random but fixed order: those to train on, and those to test with."""
    pairs = list(product(TWO_DIGITS, TWO_DIGITS))
    random.Random(SPLIT_SEED).shuffle(pairs)
    made = [{"id": f"{a}+{b}", "prompt": f"{a}+{b}=", "answer": f"{HASHES}{a + b}"} for a, b in pairs]
    return made[TEST_ROWS:], made[:TEST_ROWS]


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A token for every character of the texts, and one for "#### ".

    Byte-pair encoding without a merge: what transformers makes of the file of any qwen2 model, it makes of this one.
    """
    texts = list(texts)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.decoder = decoders.Fuse()
    special = [PAD, EOS]
    characters = {character for text in texts for character in text}
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + len(characters), special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(HASHES, normalized=False)])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json, and beside it what transformers' AutoTokenizer needs."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": PAD, "eos_token": EOS, "unk_token": EOS}
    config = {"tokenizer_class": "Qwen2Tokenizer", "clean_up_tokenization_spaces": False} | names
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_model(tokenizer: Tokenizer, folder: Path, seed: int) -> None:
    """Random parameters for the vocabulary: 0.3 million of them."""
    from hpcrl.families.config import DecoderConfig
    from hpcrl.models.pretrained import write_random_pretrained

    config = DecoderConfig(
        family="qwen2",
        vocabulary_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        blocks=2,
        heads=4,
        kv_heads=2,
        head_dim=32,
        max_positions=64,
        qkv_bias=True,
        tied=True,
        carried={"eos_token_id": tokenizer.token_to_id(EOS), "pad_token_id": tokenizer.token_to_id(PAD)},
    )
    write_random_pretrained(folder, config, seed)


def write_rows(path: Path, made: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/addition"), help="the folder to write to")
    parser.add_argument("--seed", type=int, default=1, help="of the model's random parameters")
    arguments = parser.parse_args()
    train, test = rows()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_rows(arguments.out / "train.jsonl", train)
    write_rows(arguments.out / "test.jsonl", test)
    tokenizer = train_tokenizer(row["prompt"] for row in train)
    write_tokenizer(tokenizer, arguments.out / "model")
    write_model(tokenizer, arguments.out / "model", arguments.seed)
    sizes = f"{len(train)} sums to train on, {len(test)} to test with, {tokenizer.get_vocab_size()} tokens"
    print(f"{arguments.out}: {sizes}")


if __name__ == "__main__":
    main()
