"""A training step of adapters against PEFT's, and one of a model that transformers computes against transformers alone,
on texts of skewed lengths: hpcrl packs them; the peers pad them, or pack them as well as they can.

CPU seconds of one thread, medians of rounds taken in turn; one JSON line per figure. `ratio` is the time of the
fastest of the peers over hpcrl's. The losses of two steps are compared before anything is timed.
"""

import json
import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from training import PEAK_RATE, Ours, make_model, measure, skewed_texts

from hpcrl.config.model import LoraConfig

TEXTS, ROUNDS, RANK = 64, 5, 16
MICRO_BATCH = 2048
"""hpcrl's tokens in one."""
SORTED = (16, 8)
"""Texts of like length in a padded batch."""
PACKED = (256, 512, 1024)
"""Tokens of a packed row."""
Step = Callable[[], float]
Text = tuple[np.ndarray, np.ndarray]
"""Prompt and answer."""


@dataclass(frozen=True)
class Batch:
    """What a model of transformers is given at once, and the label of each of the logits that it gives [N]."""

    given: Mapping[str, Tensor]
    labels: Tensor

    def loss(self, model: Any, labels: int) -> Tensor:
        logits = model(**self.given, use_cache=False).logits.flatten(0, 1)
        summed = torch.nn.functional.cross_entropy(logits, self.labels, ignore_index=-100, reduction="sum")
        return summed / labels


class Theirs:
    """transformers', PEFT's where there is a folder of `adapters`; clipping, and torch's fused AdamW."""

    def __init__(self, base: Path, batches: Sequence[Batch], adapters: Path | None = None) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(base)
        if adapters is not None:
            from peft import PeftModel

            self._model = PeftModel.from_pretrained(self._model, adapters, is_trainable=True)
        self._trained = [it for it in self._model.parameters() if it.requires_grad]
        self._optimizer = torch.optim.AdamW(self._trained, PEAK_RATE, fused=True)
        self._batches = batches
        self._labels = sum(int((batch.labels >= 0).sum()) for batch in batches)

    def sft_step(self) -> float:
        """The loss before it."""
        self._optimizer.zero_grad()
        total = 0.0
        for batch in self._batches:
            loss = batch.loss(self._model, self._labels)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._trained, 1.0)
        self._optimizer.step()
        return total


def padded(texts: Sequence[Text], count: int) -> list[Batch]:
    """Batches of so many texts."""
    return [_padded(texts[begin : begin + count]) for begin in range(0, len(texts), count)]


def _padded(texts: Sequence[Text]) -> Batch:
    shape = (len(texts), max(map(_length, texts)))
    tokens, labels, mask = np.zeros(shape, np.int64), np.full(shape, -100), np.zeros(shape, np.int64)
    for row, (prompt, answer) in enumerate(texts):
        end = len(prompt) + len(answer)
        tokens[row, :end] = np.concatenate([prompt, answer])
        labels[row, len(prompt) - 1 : end - 1] = answer
        mask[row, :end] = 1
    given = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask)}
    return Batch(given, torch.from_numpy(labels).flatten())


def packed(texts: Sequence[Text], tokens: int) -> list[Batch]:
    """Rows of at most so many tokens, best fit first, the longest text first."""
    rows: list[list[Text]] = []
    for text in sorted(texts, key=_length, reverse=True):
        fitting = [row for row in rows if sum(map(_length, row)) + _length(text) <= tokens]
        if fitting:
            max(fitting, key=lambda row: sum(map(_length, row))).append(text)
        else:
            rows.append([text])
    return [_packed(row) for row in rows]


def _packed(texts: Sequence[Text]) -> Batch:
    """A row of its own, in which a text sees itself alone; logits are where labels are."""
    tokens = torch.from_numpy(np.concatenate([part for text in texts for part in text])).long()
    positions = torch.cat([torch.arange(_length(text)) for text in texts])
    of_text = torch.cat([torch.full((_length(text),), number) for number, text in enumerate(texts)])
    ends = np.cumsum([_length(text) for text in texts])
    kept = [np.arange(end - len(answer) - 1, end - 1) for end, (_, answer) in zip(ends, texts, strict=True)]
    given = {
        "input_ids": tokens[None],
        "position_ids": positions[None],
        "attention_mask": (of_text[:, None] == of_text).tril()[None, None],
        "logits_to_keep": torch.from_numpy(np.concatenate(kept)),
    }
    return Batch(given, torch.from_numpy(np.concatenate([answer for _, answer in texts])).long())


def _length(text: Text) -> int:
    return len(text[0]) + len(text[1])


def make_neox(folder: Path) -> None:
    """About 7 million parameters of a model that hpcrl has no code for."""
    config = transformers.GPTNeoXConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=8,
        max_position_embeddings=512,
    )
    transformers.GPTNeoXForCausalLM(config).save_pretrained(folder)


def write_adapters(base: Path, folder: Path) -> None:
    """New ones, beside all linear layers of the blocks."""
    from peft import LoraConfig, get_peft_model

    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=names, task_type="CAUSAL_LM")
    get_peft_model(model, config).save_pretrained(folder)


@dataclass(frozen=True)
class Duel:
    """One of hpcrl's sides, and the fastest of those peers whose names begin so."""

    ours: str
    peers: str
    target: float = 0.0
    """The least ratio; 0: none."""


def figures(ours: Mapping[str, Ours], peers: Mapping[str, Theirs], duels: Sequence[Duel]) -> Iterator[Any]:
    sides: dict[str, Step] = {name: side.sft_step for name, side in (*ours.items(), *peers.items())}
    for _ in range(2):  # the second loss tells what the first step has done
        losses = {name: step() for name, step in sides.items()}
        assert max(losses.values()) - min(losses.values()) < 1e-5 * max(losses.values()), losses
    seconds = dict(zip(sides, measure(list(sides.values()), ROUNDS), strict=True))
    for duel in duels:
        first, *others = sorted((it for it in peers if it.startswith(duel.peers)), key=lambda it: seconds[it])
        more = ", ".join(f"{it.partition(', ')[2]}: {seconds[it]:.2f} s" for it in others)
        yield {
            "what": f"{duel.ours} against {duel.peers.rstrip(',')}",
            "hpcrl_s": seconds[duel.ours],
            "peer": first,
            "peer_s": seconds[first],
            "others": f" ({more})" if more else "",
            "ratio": seconds[first] / seconds[duel.ours],
            "target": duel.target,
        }


def of_adapters(work: Path, texts: Sequence[Text]) -> Iterator[Any]:
    base, folder = work / "qwen2", work / "adapters"
    make_model(base)
    write_adapters(base, folder)
    given: dict[str, Any] = {"lora": LoraConfig(rank=RANK, alpha=2.0 * RANK, path=str(folder))}
    own, theirs = "LoRA step of hpcrl's qwen2", "LoRA step of transformers' qwen2"
    ours = {own: _ours(base, texts, **given), theirs: _ours(base, texts, model="transformers", **given)}
    peers = {f"peft {ways}": Theirs(base, batches, folder) for ways, batches in _padded_ways(texts).items()}
    peers |= {f"peft packed, rows of {tokens:,}": Theirs(base, packed(texts, tokens), folder) for tokens in PACKED}
    duels = [Duel(own, "peft padded,", 2.5), Duel(own, "peft padded by length"), Duel(own, "peft packed", 1.3)]
    yield from figures(ours, peers, [*duels, *(replace(duel, ours=theirs, target=0.0) for duel in duels)])


def of_transformers(work: Path, name: str, make: Callable[[Path], None], texts: Sequence[Text]) -> Iterator[Any]:
    folder = work / f"{name}-whole"
    make(folder)
    what = f"step of transformers' {name}, packed"
    peers = {f"transformers {ways}": Theirs(folder, batches) for ways, batches in _padded_ways(texts).items()}
    duels = [Duel(what, "transformers padded,", 1.8), Duel(what, "transformers padded by length")]
    yield from figures({what: _ours(folder, texts, model="transformers")}, peers, duels)


def _ours(folder: Path, texts: Sequence[Text], **settings: Any) -> Ours:
    prompts, answers = [text[0] for text in texts], [text[1] for text in texts]
    return Ours(folder, prompts, answers, micro_batch_tokens=MICRO_BATCH, **settings)


def _padded_ways(texts: Sequence[Text]) -> dict[str, list[Batch]]:
    by_length = {f"padded by length, {count} texts": padded(sorted(texts, key=_length), count) for count in SORTED}
    return {f"padded, {len(texts)} texts": padded(texts, len(texts))} | by_length


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    rows = list(zip(*skewed_texts(TEXTS), strict=True))
    with TemporaryDirectory() as folder:
        work = Path(folder)
        whole = (("qwen2", make_model), ("gpt_neox", make_neox))
        for found in (of_adapters(work, rows), *(of_transformers(work, *each, rows) for each in whole)):
            for figure in found:
                print(json.dumps(figure), flush=True)
