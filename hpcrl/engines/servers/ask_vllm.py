"""A worker's talk with a server that makes responses for it: greeting, new weights, prompts.

Knows neither layouts nor moves. What it raises tells of the server, never of this process.
"""

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from hpcrl.config.generation import GenerationConfig
from hpcrl.engines.servers.rests import Asked
from hpcrl.engines.servers.serve_vllm import (
    FromServer,
    Generate,
    Hello,
    Load,
    Loaded,
    Refused,
    Response,
    Sleep,
    ToServer,
    Welcome,
    receive,
    send,
)
from hpcrl.engines.servers.vllm_weights import writing
from hpcrl.models.history import Generated
from hpcrl.placement.servers import LOG, PID, WHY
from hpcrl.processes import shared_memory_of, work_done
from hpcrl.scratch import goes_with

LOOK_S, PATIENCE_S = 1.0, 150.0
F = TypeVar("F", bound=FromServer)


class LostServerError(RuntimeError):
    """The server is gone, or refuses."""


class Connection:
    """With the server behind a socket, for one attempt."""

    def __init__(self, door: Path, attempt: int, told: Callable[[str], None], patience_s: float = PATIENCE_S) -> None:
        """Waits until it is ready. `told` is told how far it is. One that has done nothing for so long, here or when it
        is asked for something, is lost. Raises LostServerError."""
        self._door, self._patience_s = door, patience_s
        self._noted: set[Path] = set()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(patience_s)
        try:
            self._socket.connect(str(door))
            send(self._socket, Hello(attempt))
        except OSError as error:
            raise self._lost(error) from error
        welcome = self._heard(Welcome, lambda work: told(f"vLLM is starting, {work} units of work so far"))
        self._note_shared_memory()
        self.version, self.digest = welcome.version, welcome.digest

    def load(self, folder: Path, files: Sequence[str], digest: str, write: Callable[[], None]) -> None:
        """Have it read new weights, of files that `write` brings into the folder meanwhile. Raises LostServerError."""
        self.digest = ""
        with writing(folder):
            self._say(Load(str(folder), tuple(files), digest))
            write()
        loaded = self._heard(Loaded)
        if loaded.digest != digest:
            raise LostServerError(f"it has loaded {loaded.digest}, and was given {digest}")
        self.digest = digest

    def sleep(self, *, forget: bool) -> None:
        """Have it leave its device. Raises LostServerError."""
        self.digest = self._asked(Sleep(2 if forget else 1), Loaded).digest

    def generate(
        self,
        asked: Asked,
        config: GenerationConfig,
        eos: Sequence[int],
    ) -> Generated:
        """A response to each prompt. Raises LostServerError."""
        wanted = Generate(
            prompts=tuple(np.asarray(prompt, np.int32).tobytes() for prompt in asked.prompts),
            seeds=tuple(map(_signed, asked.seeds)),
            limits=tuple(asked.limits),
            least=tuple(asked.least),
            temperature=0.0 if config.greedy else config.temperature,
            top_k=0 if config.greedy else config.top_k,
            top_p=1.0 if config.greedy else config.top_p,
            eos_token_ids=tuple(eos),
            stop=config.stop,
        )
        self._say(wanted)
        found: dict[int, Response] = {}
        while len(found) < len(asked.prompts):
            response = self._heard(Response)
            found[response.index] = response
        rows = [found[index] for index in range(len(asked.prompts))]
        return Generated(
            [np.frombuffer(row.tokens, np.int32) for row in rows],
            [np.frombuffer(row.logprobs, np.float64).astype(np.float32) for row in rows],
            [row.finished for row in rows],
        )

    def close(self) -> None:
        self._socket.close()

    def _asked(self, frame: ToServer, answer: type[F]) -> F:
        self._say(frame)
        return self._heard(answer)

    def _say(self, frame: ToServer) -> None:
        try:
            send(self._socket, frame)
        except OSError as error:
            raise self._lost(error) from error

    def _heard(self, wanted: type[F], told: Callable[[int], None] = lambda _: None) -> F:
        try:
            self._wait(told)
            frame = receive(self._socket, FromServer)
        except (OSError, EOFError, ValueError) as error:
            raise self._lost(error) from error
        if isinstance(frame, Refused):
            raise LostServerError(f"{frame.why} ({self._log()})")
        if not isinstance(frame, wanted):
            raise LostServerError(f"it says {type(frame).__name__} where {wanted.__name__} was due")
        return frame

    def _wait(self, told: Callable[[int], None]) -> None:
        """Until it says something. `told` is told what it has done meanwhile. Raises TimeoutError."""
        done, since = 0, time.monotonic()
        while not select.select((self._socket,), (), (), LOOK_S)[0]:
            if (work := self._work()) != done:
                done, since = work, time.monotonic()
            if time.monotonic() - since > self._patience_s:
                raise TimeoutError
            told(work)
            self._note_shared_memory()

    def _note_shared_memory(self) -> None:
        """What it would leave if it were killed goes with the folder that its agent has made for it."""
        with suppress(OSError):
            pid = self._door.with_name(PID)
            found = shared_memory_of(int(pid.read_text()), pid.stat().st_mtime) - self._noted
            goes_with(self._door.parent, found)
            self._noted |= found

    def _lost(self, error: Exception) -> LostServerError:
        if isinstance(error, TimeoutError):
            with suppress(OSError):  # nor is it taken over: its agent reads this
                self._door.with_name(WHY).write_text(f"it has done nothing for {self._patience_s:g} s")
        # Of a socket that was closed while it had unread words, kernels say "reset", of a listening one "refused".
        gone = "it has ended without a word" if isinstance(error, (EOFError, ConnectionError)) else ""
        why = _read(self._door.with_name(WHY)) or gone or str(error) or type(error).__name__
        return LostServerError(f"{why} ({self._log()})")

    def _log(self) -> str:
        return _read(self._door.with_name(LOG)) or "see its log"

    def _work(self) -> int:
        """That it does changes this; waiting does not."""
        pid = _read(self._door.with_name(PID))
        return work_done(int(pid)) if pid else 0


def _signed(seed: int) -> int:
    """The same 64 bits as vLLM takes them, for which -1 is no seed."""
    signed = seed - (1 << 64) if seed >= 1 << 63 else seed
    return 0 if signed == -1 else signed


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""
