"""The engine of a copy whose responses vLLM makes, in a server on this node: brings it weights and prompts.

The first worker of a part receives the whole model, writes it into memory that the server shares, and lets it go. The
others of the part only wait with it: their devices are the server's.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path

import msgspec
import numpy as np
import torch

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import Between, ModelConfig
from hpcrl.data.tokens import Tokens, load_tokens
from hpcrl.durable.model_folder import ModelFolder
from hpcrl.engines.checksum import digest_of
from hpcrl.engines.composed import DTYPES, pretrained
from hpcrl.engines.engine import (
    Columns,
    Decision,
    EngineContext,
    Held,
    Kind,
    Objective,
    Sequences,
    TrainResult,
    Update,
)
from hpcrl.engines.flat import FlatParameters
from hpcrl.engines.model import finite
from hpcrl.engines.servers.ask_vllm import Connection
from hpcrl.engines.servers.rests import Asked, ended_by_text, rests
from hpcrl.errors import InternalError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.reader import parameters_of
from hpcrl.models.history import Generated
from hpcrl.models.stopping import StopStrings
from hpcrl.placement.exporting import DTYPES as STORED
from hpcrl.placement.servers import WEIGHTS
from hpcrl.placement.shards import WHOLE

PARTS = 16
"""Files of weights, about: a server reads one while the next is written."""


class WeightFiles:
    """Where a server reads new weights: files that are there while it does, and no longer."""

    def __init__(self, folder: Path, config: DecoderConfig, dtype: str) -> None:
        total = sum(parameter.numel for parameter in parameters_of(config)) * DTYPES[dtype].itemsize
        self._folder, self._unfinished = folder, folder / "unfinished"
        self._files = ModelFolder.of(config, STORED[dtype], -(-total // PARTS))

    def bring(self, memory: FlatParameters, server: Connection, digest: str) -> None:
        """Have the server read them, file after file. Raises InternalError where there is no room for them, and
        LostServerError."""
        self._remove()  # what an earlier worker has left
        try:
            server.load(self._folder, list(self._files.files), digest, lambda: self._write(memory))
        except OSError as error:
            advice = "Give each node as much shared memory (/dev/shm) or room in $TMPDIR as the model's weights have."
            raise InternalError(f"Weights cannot be written to {self._folder}: {error}.", advice) from error
        finally:
            self._remove()

    def _write(self, memory: FlatParameters) -> None:
        self._unfinished.mkdir(mode=0o700)
        for file in self._files.files:
            self._write_file(file, memory)

    def _write_file(self, file: str, memory: FlatParameters) -> None:
        """For this user alone; it gets its name when it is whole."""
        path = self._unfinished / file
        path.touch(mode=0o600)
        self._files.write_file(path.parent, file, lambda it: _numbers(memory, it))
        path.rename(self._folder / file)

    def _remove(self) -> None:
        shutil.rmtree(self._unfinished, ignore_errors=True)
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)


def _numbers(memory: FlatParameters, parameter: Parameter) -> np.ndarray:
    """A whole parameter on the host; of bf16 its bits."""
    tensor = memory.views[parameter.name].detach().cpu()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


class VllmEngine:
    """Fulfils of `Engine` and `EngineState` what is asked of a copy that generates and does nothing else."""

    def __init__(self, context: EngineContext, config: DecoderConfig) -> None:
        self._role, self._config, self._groups = context.role, config, context.groups
        self._dtype, self._device = DTYPES[context.model.dtype], context.device
        self._eos = tuple(dict.fromkeys((*context.eos_token_ids, *config.eos_token_ids)))
        self._tokenizer = context.tokenizer
        self._memory: FlatParameters | None = None
        """Parameters that the server has not got yet."""
        self._digest = ""
        self._server: Connection | None = None
        if self._is_head:
            assert context.server is not None, "the agent starts a server for each part's first worker"
            door, attempt, patience_s = context.server
            self._files = WeightFiles(door.parent / WEIGHTS, config, context.model.dtype)
            with self._asking("meeting the server of vLLM"):
                self._server = Connection(door, attempt, _of_role(context), patience_s)

    @classmethod
    def open(cls, context: EngineContext) -> "VllmEngine":
        """Of a role's folder. Raises DataError where it holds no such model, and PeerLostError where vLLM does not
        start."""
        config, _ = pretrained(context)
        return cls(context, config)

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        return self._groups.total(vector)

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        seeds: Sequence[int],
        config: GenerationConfig,
        begun: Sequence[np.ndarray] | None = None,
        limits: Sequence[int] | None = None,
    ) -> Generated:
        if not prompts:
            return Generated([], [], [])
        made = b""
        if self._server is not None:
            self._bring(self._server)
            most = limits or [config.max_new_tokens] * len(prompts)
            least = [config.min_new_tokens] * len(prompts)
            with self._asking("generating with vLLM"):
                found = self._made(self._server, Asked(prompts, seeds, most, least), config, begun)
            finite(self._role, "log-probabilities of sampled tokens", np.concatenate(found.logprobs))
            made = _packed(found)
        return _unpacked(self._groups.block.told(made, self._groups.head))

    def _made(
        self, server: Connection, asked: Asked, config: GenerationConfig, begun: Sequence[np.ndarray] | None
    ) -> Generated:
        """Whole responses, or what follows on what is begun of them."""
        if begun is None:
            return server.generate(asked, config, self._eos)
        rest = rests(asked, begun)
        found = server.generate(rest, config, self._eos)
        if not config.stop:
            return found
        return ended_by_text(found, begun, rest.least, partial(StopStrings, self._tokens, config.stop))

    def forward(self, sequences: Sequences, temperature: float = 1.0) -> np.ndarray:
        raise InternalError("vLLM makes responses, and no predictions.")

    def train_batch(
        self,
        sequences: Sequences,
        columns: Columns,
        objective: Objective,
        at: Update,
        decided: Decision | None = None,
    ) -> TrainResult:
        raise InternalError("vLLM makes responses, and is not trained.")

    def settle(self, model: ModelConfig, steps: int) -> None:
        raise InternalError("vLLM makes responses, and is not trained.")

    # What the host may ask

    @property
    def attention(self) -> str:
        return "vLLM's own"

    def flat(self) -> tuple[DecoderConfig, torch.Tensor]:
        if not self._is_head:
            return self._config, torch.empty(0, dtype=self._dtype, device=self._device)
        if self._memory is None:
            self._memory = FlatParameters(self._config, WHOLE, self._dtype, self._device, False)
        return self._config, self._memory.data

    def parameters_digest(self) -> str:
        """Of what was moved here last, which the server has or is to have."""
        total = self._groups.block.total
        if self._memory is not None:
            self._digest = digest_of([self._memory.data], self._memory.spans, total)
        elif not self._is_head:
            self._digest = digest_of([self.flat()[1]], (), total)
        return self._digest

    def release(self, between: Mapping[Kind, Between]) -> None:
        """What the server has goes with it; what it has not got yet stays until it has, or is of no more use."""
        how = between.get("parameters", "keep")
        if how == "drop":
            self._memory, self._digest = None, ""
        if how == "keep" or self._server is None or self._memory is not None:
            return
        with self._asking("having vLLM leave its device"):
            self._server.sleep(forget=how == "drop")

    def held(self) -> Held:
        return {"parameters": 0 if self._memory is None else self._memory.data.nbytes}

    def cut(self, micro_batch_tokens: int) -> None:
        """Its server cuts prompts as it likes."""

    @cached_property
    def _tokens(self) -> Tokens:
        return load_tokens(self._tokenizer)

    @property
    def _is_head(self) -> bool:
        return self._groups.block.index == self._groups.head

    def _asking(self, what: str) -> AbstractContextManager[None]:
        """What the server does to this worker within it is no error of the run's: another attempt begins."""
        return self._groups.block.operations(what)

    def _bring(self, server: Connection) -> None:
        """Have the server's weights be those that were moved here last."""
        memory, self._memory = self._memory, None
        if memory is None or server.digest == self._digest:
            return
        with self._asking("giving vLLM new weights"):
            self._files.bring(memory, server, self._digest)


def _of_role(context: EngineContext) -> Callable[[str], None]:
    return lambda what: context.told(f"loading {context.role}: {what}")


def _packed(made: Generated) -> bytes:
    rows = zip(made.tokens, made.logprobs, made.finished, strict=True)
    return msgspec.msgpack.encode([(tokens.tobytes(), of.tobytes(), finished) for tokens, of, finished in rows])


def _unpacked(data: bytes) -> Generated:
    rows = msgspec.msgpack.decode(data, type=list[tuple[bytes, bytes, bool]])
    return Generated(
        [np.frombuffer(tokens, np.int32) for tokens, _, _ in rows],
        [np.frombuffer(logprobs, np.float32) for _, logprobs, _ in rows],
        [finished for _, _, finished in rows],
    )
