"""Says in a reward model's folder which token pads, so that transformers finds a text's last token.

transformers reads the score at the last token that is no padding. A padding token that also ends texts would have it
read one before the end; then another is said, in config.json and for the tokenizer.
"""

import itertools
import json
from pathlib import Path
from typing import Any

from hpcrl.data.tokens import load_tokens
from hpcrl.families.config import DecoderConfig

SAYS_PADDING = ("tokenizer_config.json", "special_tokens_map.json")


def say_padding(folder: Path, config: DecoderConfig) -> dict[str, Any]:
    """The fields of config.json that say it; changes the tokenizer's files in the folder to say the same.

    It is the tokenizer's own padding token, or else the model's; if neither is there, or ends a text, the one that
    begins texts, or else the first of the vocabulary that ends none.
    """
    tokens = load_tokens(folder)
    named = [_read(folder / name).get("pad_token") for name in SAYS_PADDING]
    texts = [token.get("content") if isinstance(token, dict) else token for token in named]
    own = [None if text is None else tokens.tokenizer.token_to_id(text) for text in texts]
    said = [config.carried.get(name) for name in ("pad_token_id", "bos_token_id")]
    ends = {*tokens.eos_ids, *config.eos_token_ids}
    candidates = itertools.chain(own, said, range(config.vocabulary_size))
    found = next(token for token in candidates if isinstance(token, int) and token not in ends)
    for name in SAYS_PADDING:
        if fields := _read(folder / name):
            text = tokens.tokenizer.id_to_token(found)
            (folder / name).write_text(json.dumps(fields | {"pad_token": text}, indent=2, ensure_ascii=False) + "\n")
    return {"pad_token_id": found}


def _read(path: Path) -> dict[str, Any]:
    """The object in a file, which the tokenizer was loaded by; empty where there is none."""
    return json.loads(path.read_bytes()) if path.is_file() else {}
