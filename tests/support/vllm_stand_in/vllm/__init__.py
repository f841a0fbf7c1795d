"""A stand-in for vLLM: what hpcrl's server asks of it, made by hpcrl's own sampler.

A run with it has the numbers of one that generates under `native`, so all between master and server is compared to the
bit. vLLM's own numbers are not its matter; tests/algos/test_vllm_real.py has those.
"""

import json
import os
import signal
import sys
import tempfile
from array import array
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors import safe_open

from hpcrl.engines.flat import FlatTransformer, new_model
from hpcrl.engines.servers.vllm_weights import arriving
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.sampling import SamplingOptions

__version__ = "0.32.0"
sampling_params = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2))


NAME = "vllm-stand-in"


class SamplingParams(SimpleNamespace):
    """Whatever it is given."""


def fault(point: str) -> None:
    """Get the signal that a file of this name says, once, where a test has put one into the folder that it names."""
    mark = Path(os.environ.get("STAND_IN_FAULTS", "/nowhere"), point)
    if mark.exists():
        mark.rename(done := mark.with_name(f"{point}.done"))
        os.kill(os.getpid(), signal.Signals[done.read_text()])


class LLM:
    """One model. Its engine makes all responses in the first step, and gives them one a step."""

    def __init__(self, **given: Any) -> None:
        import torch

        torch.set_num_threads(1)
        self._shared = np.memmap(f"/dev/shm/{NAME}-{os.getpid()}", mode="w+", shape=1)  # as vLLM has for its processes
        fault("start")
        self._given = given
        self._dtype = getattr(torch, given["dtype"])
        self._model = self._read(Path(given["model"]))
        extension, name = given["worker_extension_cls"].split(".")
        assert hasattr(getattr(import_module(extension), name), "take_weights"), sys.path
        self.llm_engine = Engine(self)
        self.resets = 0

    @property
    def model(self) -> FlatTransformer:
        return self._model

    @property
    def slots(self) -> tuple[int, int]:
        return self._given["max_num_seqs"], self._given["max_num_batched_tokens"]

    def collective_rpc(self, method: str, args: tuple[str, Sequence[str]]) -> list[bool]:
        assert method == "take_weights"
        fault("load")
        folder, files = Path(args[0]), args[1]
        come = list(arriving(folder, files))
        if len(come) == len(files):
            self._model = self._read(Path(self._given["model"]), folder)
        return [len(come) == len(files)]

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    def _read(self, folder: Path, weights: Path | None = None) -> FlatTransformer:
        """A folder's model, or that with the weights of another."""
        with tempfile.TemporaryDirectory() as whole:
            (Path(whole) / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_bytes())))
            for path in (weights or folder).glob("*.safetensors*"):
                assert weights is None or path.stat().st_mode & 0o077 == 0, "weights are for their owner"
                (Path(whole) / path.name).symlink_to(path.absolute())
            if weights is not None:
                files = {name: path.name for path in weights.glob("*.safetensors") for name in _names(path)}
                (Path(whole) / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
            return new_model(whole, dtype=self._dtype, trainable=False)


def _names(path: Path) -> list[str]:
    with safe_open(path, "np") as file:
        return list(file.keys())


class Engine:
    """Of one LLM."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._asked: dict[str, tuple[np.ndarray, SamplingParams]] = {}
        self._made: list[Any] = []

    def add_request(self, name: str, prompt: dict[str, list[int]], params: SamplingParams) -> None:
        self._asked[name] = np.array(prompt["prompt_token_ids"], np.int32), params

    def has_unfinished_requests(self) -> bool:
        return bool(self._asked or self._made)

    def abort_request(self, names: list[str]) -> None:
        self._asked, self._made = {}, []

    def step(self) -> list[Any]:
        if self._asked:
            fault("generate")
            self._make()
            self._asked = {}
        return [self._made.pop(0)] if self._made else []

    def _make(self) -> None:
        """The sampler bans ends before one number of tokens: a batch for each."""
        for least in sorted({params.min_tokens for _, params in self._asked.values()}):
            self._make_of({name: asked for name, asked in self._asked.items() if asked[1].min_tokens == least})

    def _make_of(self, wanted: dict[str, tuple[np.ndarray, SamplingParams]]) -> None:
        prompts, params = zip(*wanted.values(), strict=True)
        one, (slots, prefill) = params[0], self._llm.slots
        options = GenerationOptions(
            max_new_tokens=max(it.max_tokens for it in params),
            min_new_tokens=one.min_tokens,
            sampling=SamplingOptions(one.temperature or 1.0, one.top_k, one.top_p, one.temperature == 0),
            eos_token_ids=tuple(one.stop_token_ids),
            slots=slots,
            prefill_tokens=prefill,
        )
        seeds, limits = [it.seed % 2**64 for it in params], [it.max_tokens for it in params]
        made = Generator(self._llm.model, options).generate(prompts, seeds, limits)
        for name, tokens, logprobs, finished in zip(wanted, *made, strict=True):
            pairs = zip(tokens.tolist(), logprobs.tolist(), strict=True)
            each = [{token: SimpleNamespace(logprob=logprob)} for token, logprob in pairs]
            output = SimpleNamespace(
                token_ids=array("i", tokens.tolist()), logprobs=each, finish_reason="stop" if finished else "length"
            )
            self._made.append(SimpleNamespace(request_id=name, finished=True, outputs=[output]))
