"""A training step of a small qwen2 on texts of skewed lengths: hpcrl packs them, transformers pads them.

CPU seconds of one thread, median of several rounds taken in turn; one JSON line per measurement. `ratio` is the
peer's time over hpcrl's.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

LENGTHS = (8, 256)
PEAK_RATE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each side is measured")
    parser.add_argument("--texts", type=int, default=64, help="texts in a batch")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        make_model(Path(folder))
        prompts, answers = skewed_texts(options.texts)
        ours, theirs = Ours(Path(folder), prompts, answers), Theirs(Path(folder), prompts, answers)
        facts = {"texts": options.texts, "tokens": ours.tokens, "padded_tokens": theirs.tokens, "loss": ours.loss()}
        assert abs(theirs.loss() - facts["loss"]) < 1e-4, (theirs.loss(), facts["loss"])
        for name, peer in (("forward_backward", "padded"), ("sft_step", "padded")):
            seconds = measure([getattr(ours, name), getattr(theirs, name)], options.rounds)
            print(json.dumps({"what": name, "peer": peer, **facts, **report(*seconds)}), flush=True)


def skewed_texts(count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Lengths of which 55 % would be padding; the first quarter of a text is its prompt."""
    draw = np.random.default_rng(0)
    shortest, longest = LENGTHS
    lengths = (shortest + (longest - shortest) * draw.uniform(0, 1, count) ** 1.3).astype(int)
    texts = [draw.integers(0, 4096, length, np.int32) for length in lengths]
    cuts = [max(1, length // 4) for length in lengths]
    return [t[:c] for t, c in zip(texts, cuts, strict=True)], [t[c:] for t, c in zip(texts, cuts, strict=True)]


def make_model(folder: Path) -> None:
    """About 5 million parameters."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = Qwen2Config(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


class Ours:
    """The native engine with one micro-batch; `settings` are those of the role."""

    def __init__(self, folder: Path, prompts: list[np.ndarray], answers: list[np.ndarray], **settings: Any) -> None:
        import torch

        from hpcrl.algos.functional.losses import Denominators, token_weights
        from hpcrl.config.model import OptimizerConfig, TrainedModelConfig
        from hpcrl.engines.engine import Columns, EngineContext, Sequences
        from hpcrl.engines.native import NativeEngine
        from hpcrl.models.kernels import Kernels
        from hpcrl.parallel.group import Group
        from hpcrl.parallel.replica import over_data
        from hpcrl.workers.host import nobody_is_told

        alone = Group((0,), 0, torch.device("cpu"))
        optimizer = OptimizerConfig(lr=PEAK_RATE)
        settings = {"micro_batch_tokens": 10**9, **settings}
        model = TrainedModelConfig(path=str(folder), optimizer=optimizer, **settings)
        self._engine = NativeEngine.open(
            EngineContext(
                role="actor",
                model=model,
                head="vocabulary",
                seed=1,
                groups=over_data(alone),
                device=torch.device("cpu"),
                tokenizer=folder,
                eos_token_ids=(),
                steps=1,
                blended=False,
                empty=False,
                kernels=Kernels(deterministic=False),
                told=nobody_is_told,
            )
        )
        self._sequences = Sequences.from_rows(prompts, answers)
        whole = Denominators(int(self._sequences.labels.sum()), len(self._sequences))
        mask, bounds = torch.from_numpy(self._sequences.mask), np.cumsum([0, *self._sequences.labels])
        weights = token_weights("token-mean", mask, torch.from_numpy(bounds), whole)
        self._columns = Columns({"weights": weights.numpy()})
        self.tokens = len(self._sequences.tokens)

    def loss(self) -> float:
        return -float(self._engine.forward(self._sequences).mean())

    def forward_backward(self) -> float:
        return self._train("refused")

    def sft_step(self) -> float:
        """The loss before it."""
        return self._train("stepped")

    def _train(self, outcome: Literal["refused", "stepped"]) -> float:
        from hpcrl.algos.sft import answer_loss
        from hpcrl.engines.engine import Decision, Objective, Update

        decided = Decision(outcome, PEAK_RATE)
        objective, at = Objective(answer_loss), Update(1, 0, 1)
        return self._engine.train_batch(self._sequences, self._columns, objective, at, decided).loss


class Theirs:
    """transformers with right padding, clipping and torch's fused AdamW."""

    def __init__(self, folder: Path, prompts: list[np.ndarray], answers: list[np.ndarray]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), PEAK_RATE, fused=True)
        longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        shape = (len(prompts), longest)
        tokens, labels, mask = np.zeros(shape, np.int64), np.full(shape, -100), np.zeros(shape, np.int64)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            end = len(prompt) + len(answer)
            tokens[row, :end] = np.concatenate([prompt, answer])
            labels[row, len(prompt) : end] = answer
            mask[row, :end] = 1
        self._batch = {
            "input_ids": torch.from_numpy(tokens),
            "labels": torch.from_numpy(labels),
            "attention_mask": torch.from_numpy(mask),
        }
        self.tokens = tokens.size

    def loss(self) -> float:
        import torch

        with torch.no_grad():
            return float(self._model(**self._batch).loss)

    def forward_backward(self) -> None:
        self._optimizer.zero_grad()
        self._model(**self._batch, use_cache=False).loss.backward()

    def sft_step(self) -> None:
        import torch

        self.forward_backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()


def measure(actions: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median CPU seconds of each action, all of them measured in every round."""
    taken: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()
    for _ in range(rounds):
        for action, seconds in zip(actions, taken, strict=True):
            started = time.process_time()
            action()
            seconds.append(time.process_time() - started)
    return [statistics.median(seconds) for seconds in taken]


def report(ours: float, theirs: float) -> dict[str, float]:
    return {"hpcrl_s": round(ours, 4), "peer_s": round(theirs, 4), "ratio": round(theirs / ours, 3)}


if __name__ == "__main__":
    main()
