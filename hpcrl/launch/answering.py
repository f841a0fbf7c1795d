"""A model that answers on this machine, in a process of its own, which alone loads torch."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hpcrl.agent.gpus import seen_devices
from hpcrl.agent.nvml import free_memory
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig
from hpcrl.data.tokens import HALF, Tokens
from hpcrl.errors import ConfigurationError, DataError, ExitCode, HpcrlError, InternalError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameters_of
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import generating_memory, role_memory
from hpcrl.placement.sizes import size_in_words
from hpcrl.wire.answering import Ended, FromModel, ModelOpened, OpenModel, Refused, Respond, Token, ToModel

SERVER = "hpcrl.engines.answering"
ENDS_IN_S = 2.0
CHUNK_BYTES = 1 << 16
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


class Answerer:
    """The process, from construction to `close`. One response at a time."""

    def __init__(self, opened: OpenModel, tokens: Tokens) -> None:
        """Waits until the model is there. Raises what the process refuses it with."""
        self._tokens = tokens
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", SERVER, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        self._received = b""
        self._decoder: msgspec.json.Decoder[FromModel] = msgspec.json.Decoder(FromModel)
        try:
            self._send(opened)
            self._heard(ModelOpened)
        except BaseException:
            self.close()
            raise

    def respond(self, prompt: np.ndarray, config: GenerationConfig, seed: int) -> Iterator[str]:
        """Pieces of text as they come. Raises what the process refuses the prompt with."""
        self._send(
            Respond(
                prompt=tuple(prompt.tolist()),
                seed=seed,
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                greedy=config.greedy,
                stop=config.stop,
            )
        )
        settled: Sequence[int] = self._tokens.lead
        waiting: list[int] = []
        while not isinstance(answer := self._heard(Token, Ended), Ended):
            waiting.append(answer.token)
            said = self._tokens.decode_on(settled, waiting)
            if said and not said.endswith(HALF):
                yield said
                settled, waiting = waiting, []
        if waiting and (said := self._tokens.decode_on(settled, waiting)):
            yield said

    def close(self) -> None:
        """End the process; a response under way is given up."""
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDS_IN_S)
        self._process.kill()
        self._process.wait()

    def _send(self, order: ToModel) -> None:
        with suppress(ConnectionError):  # it has ended, which is heard
            self._socket.sendall(msgspec.json.encode(order) + b"\n")

    def _heard(self, *kinds: type[Any]) -> Any:
        while b"\n" not in self._received:
            chunk = b""
            with suppress(ConnectionResetError):  # it has ended with orders unread
                chunk = self._socket.recv(CHUNK_BYTES)
            if not chunk:
                code = self._process.wait()
                raise InternalError(f"the process that holds the model has ended with {code}; what it said is above.")
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        answer = self._decoder.decode(line)
        if isinstance(answer, Refused):
            raise _error_of(answer)
        assert isinstance(answer, kinds), answer
        return answer


def refuse_too_large(
    name: str, model: DecoderConfig, dtype: str, device: str, prompt_tokens: int, config: GenerationConfig
) -> None:
    """Raise ConfigurationError where the memory that is free here does not hold the model and a response's cache."""
    alone = Layout()
    section = ModelConfig(path=name, dtype=dtype, micro_batch_tokens=max(1, prompt_tokens))  # type: ignore[arg-type]
    generation = GenerationConfig(max_new_tokens=config.max_new_tokens, slots=1)
    count = sum(parameter.numel for parameter in parameters_of(model))
    memory = role_memory(model, count, section, alone, device=device)
    memory = generating_memory(memory, model, section, alone, generation, prompt_tokens, device=device)
    needed, (free, where) = memory.lasting + memory.generating, free_bytes(device)
    if free is not None and needed > free:
        raise ConfigurationError(
            [
                f"{name} needs {size_in_words(needed)} in {dtype} for responses of {config.max_new_tokens} tokens, and "
                f"{where} has {size_in_words(free)} free."
            ],
            "Give --dtype bf16 or fewer --max-new-tokens, or use a machine with more memory.",
        )


def free_bytes(
    device: str, meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> tuple[float | None, str]:
    """What memory a model can have here, and whose it is; None where nobody says."""
    if device == "cuda":
        seen = seen_devices(os.environ)
        return free_memory(seen[0].uuid) if seen else None, "the first GPU"
    found = _AVAILABLE.search(meminfo.read_text())
    sizes: list[float] = [float(found[1]) * 1024] if found else []
    with suppress(OSError, ValueError):  # there is no limit, or another version of cgroups
        limit, used = (float((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        sizes.append(limit - used)
    return min(sizes, default=None), "this machine"


def device_of(asked: str) -> str:
    """`auto` is a GPU where NVML knows one that this process may see."""
    if asked not in ("auto", "cpu", "cuda"):
        raise ConfigurationError([f"--device {asked} is none of auto, cpu, cuda."])
    return ("cuda" if seen_devices(os.environ) else "cpu") if asked == "auto" else asked


def _error_of(refused: Refused) -> HpcrlError:
    if refused.exit_code == ExitCode.CONFIGURATION:
        return ConfigurationError([refused.why])
    return DataError(refused.why) if refused.exit_code == ExitCode.DATA else InternalError(refused.why)
