"""A server that makes responses with vLLM, and what is said to it. It runs under vLLM's own interpreter.

An agent starts it, with a listening Unix socket, by this file's path: it imports vLLM, msgspec and Python's own modules
and nothing of hpcrl; vLLM itself imports vllm_weights.py, beside it. It outlives workers and dies with its agent. One
worker is served at a time, the newest attempt's; a newer one takes its place, and what was being made for the older is
dropped. Frames are msgpack of the types below, each after its length; nothing is unpickled.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
import traceback
from array import array
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

LONGEST_FRAME = 1 << 30  # bytes; about 250 million prompt tokens
WHY, PR_SET_PDEATHSIG, GREETING_S = "why", 1, 5.0  # WHY: the file beside the socket that says why nobody serves
EXTENSION = "vllm_weights.Extension"  # beside this file
WEIGHTS, ALL = "weights", frozenset({"weights", "kv_cache"})  # what sleeps, as vLLM calls it


class ServerArgs(msgspec.Struct, frozen=True, kw_only=True):
    """agent → server, on its command line. `agent` is a process id, `listener` a descriptor."""

    agent: int
    listener: int
    model: str
    """The folder that the role begins from."""
    tokenizer: str
    """The run's; empty where no text ends a response."""
    dtype: str
    tensor_parallel: int
    longest: int
    """Tokens of a prompt and its response."""
    slots: int
    prefill_tokens: int
    cache_bytes: int
    """Of keys and values, on each of its devices."""
    cuda: bool
    cpus: tuple[int, ...] = ()


# ── worker → server ───────────────────────────────────────────────────────────────────────────────────────────────────
class Hello(msgspec.Struct, frozen=True, tag=True):
    """A worker of an attempt is there."""

    attempt: int


class Load(msgspec.Struct, frozen=True, tag=True):
    """Read these safetensors of a folder as they come to be there; `digest` is that of the parameters in them."""

    folder: str
    files: tuple[str, ...]
    digest: str


class Generate(msgspec.Struct, frozen=True, tag=True):
    """A response to each prompt (int32), of no more tokens than its limit and no fewer than its least. `top_k` 0 and
    `top_p` 1 are off; `temperature` 0 takes the likeliest token."""

    prompts: tuple[bytes, ...]
    seeds: tuple[int, ...]
    limits: tuple[int, ...]
    least: tuple[int, ...]
    temperature: float
    top_k: int
    top_p: float
    eos_token_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()


class Sleep(msgspec.Struct, frozen=True, tag=True):
    """Free the device: keep the weights in the host's memory (level 1), or forget them (2). What is asked next wakes
    it."""

    level: int


# ── server → worker ───────────────────────────────────────────────────────────────────────────────────────────────────
class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Ready, under so many loads. `digest` is that of the weights there; empty where they are the folder's."""

    version: str
    digest: str
    loads: int


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """It has the weights of so many loads, and what they are called; nothing where some are missing."""

    digest: str
    loads: int


class Response(msgspec.Struct, frozen=True, tag=True):
    """To the `index`-th prompt: tokens (int32), with the one that ends it, and a log-probability (float64) of each."""

    index: int
    tokens: bytes
    logprobs: bytes
    finished: bool


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It will not, or cannot, and why."""

    why: str


ToServer = Hello | Load | Generate | Sleep
FromServer = Welcome | Loaded | Response | Refused


def send(to: socket.socket, frame: ToServer | FromServer) -> None:
    """Raises ValueError where it is too long, and OSError where nobody is there."""
    body = msgspec.msgpack.encode(frame)
    if len(body) > LONGEST_FRAME:
        raise ValueError(f"A frame of {len(body)} bytes is longer than {LONGEST_FRAME}.")
    to.sendall(struct.pack("<Q", len(body)) + body)


def receive(of: socket.socket, types: Any) -> Any:
    """The next frame. Raises EOFError where there is none to come, OSError where the other side is gone, and ValueError
    where it is too long or none of these."""
    (length,) = struct.unpack("<Q", _read(of, 8))
    if length > LONGEST_FRAME:
        raise ValueError(f"A frame of {length} bytes is longer than {LONGEST_FRAME}.")
    return msgspec.msgpack.decode(_read(of, length), type=types)


def _read(of: socket.socket, count: int) -> bytearray:
    found = bytearray(count)
    view, filled = memoryview(found), 0
    while filled < count:
        if not (got := of.recv_into(view[filled:])):
            raise EOFError("the other side has hung up")
        filled += got
    return found


def is_own(peer: socket.socket) -> bool:
    """Whether a process of this user is at the other end, as the kernel says."""
    said = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", said)[1] == os.getuid())


class Served:
    """vLLM's, of one model. Knows nothing of sockets."""

    def __init__(self, args: ServerArgs) -> None:
        import vllm

        self.version = str(vllm.__version__)
        self._vllm = vllm
        self._cuda = args.cuda
        self._asleep: frozenset[str] = frozenset()
        self._llm = vllm.LLM(
            model=args.model,
            tokenizer=args.tokenizer or None,
            skip_tokenizer_init=not args.tokenizer,
            generation_config="vllm",
            dtype=args.dtype,
            tensor_parallel_size=args.tensor_parallel,
            distributed_executor_backend="mp" if args.tensor_parallel > 1 else None,
            max_model_len=args.longest,
            max_num_seqs=args.slots,
            max_num_batched_tokens=max(args.prefill_tokens, args.slots, args.longest),
            kv_cache_memory_bytes=args.cache_bytes,
            enable_prefix_caching=True,
            enforce_eager=not args.cuda,
            enable_chunked_prefill=args.cuda,  # of half a prompt it draws, too, and on CPUs it cannot set the seed back
            enable_sleep_mode=args.cuda,
            logprobs_mode="processed_logprobs",
            worker_extension_cls=EXTENSION,
            disable_log_stats=True,
            seed=0,
        )

    def load(self, folder: str, files: Sequence[str]) -> bool:
        """Whether all came."""
        self._wake({WEIGHTS})
        return all(self._llm.collective_rpc("take_weights", args=(folder, files)))

    def sleep(self, level: int) -> None:
        if self._cuda and not self._asleep:
            self._llm.sleep(level=level)
            self._asleep = ALL

    def generate(self, wanted: Generate, unwanted: Callable[[], bool]) -> Iterator[Response]:
        """Each response once it is there; nothing more once they are `unwanted`."""
        self._wake(ALL)
        self._llm.reset_prefix_cache()  # of other weights; and a batch gives the same bits after any other
        engine = self._llm.llm_engine
        for index, prompt in enumerate(wanted.prompts):
            tokens = {"prompt_token_ids": array("i", prompt).tolist()}
            engine.add_request(str(index), tokens, self._sampling(wanted, index))
        while engine.has_unfinished_requests():  # then the worker still waits, and has no reason to speak
            if unwanted():
                engine.abort_request([str(index) for index in range(len(wanted.prompts))])
                return
            for made in engine.step():
                if made.finished:
                    yield _response(int(made.request_id), made.outputs[0])

    def _sampling(self, wanted: Generate, index: int) -> Any:
        return self._vllm.SamplingParams(
            temperature=wanted.temperature,
            top_k=wanted.top_k,
            top_p=wanted.top_p,
            seed=wanted.seeds[index],
            max_tokens=wanted.limits[index],
            min_tokens=min(wanted.least[index], wanted.limits[index]),
            logprobs=0,
            stop=list(wanted.stop),
            stop_token_ids=list(wanted.eos_token_ids),
            ignore_eos=True,
            detokenize=bool(wanted.stop),
            output_kind=self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )

    def _wake(self, parts: Set[str]) -> None:
        """Have these back on the device, as far as they are asleep."""
        if waking := self._asleep & parts:
            self._llm.wake_up(tags=sorted(waking, reverse=True))
            self._asleep -= parts


def _response(index: int, made: Any) -> Response:
    tokens = array("i", made.token_ids)
    logprobs = array("d", (of[token].logprob for token, of in zip(tokens, made.logprobs, strict=True)))
    return Response(index, tokens.tobytes(), logprobs.tobytes(), made.finish_reason == "stop")


class Server:
    """Serves one worker at a time."""

    def __init__(self, engine: Served, listener: socket.socket) -> None:
        self._engine, self._listener = engine, listener
        self._worker: socket.socket | None = None
        self._attempt = -1
        self._digest, self._loads = "", 0

    def serve(self) -> None:
        """Until it is killed."""
        while True:
            talking = [self._listener, *([self._worker] if self._worker else [])]
            ready = select.select(talking, (), ())[0]
            if self._listener in ready:
                self._meet()
            elif self._worker is not None:
                self._obey(self._worker)

    def _meet(self) -> None:
        """Take a worker of the newest attempt in; it is this one's from now on."""
        worker, _ = self._listener.accept()
        worker.settimeout(GREETING_S)
        try:
            hello = receive(worker, Hello) if is_own(worker) else None
        except (EOFError, OSError, ValueError):
            hello = None
        if hello is None or hello.attempt < self._attempt:
            with contextlib.suppress(OSError):
                send(worker, Refused(f"Attempt {self._attempt} is served; this is an older one, or a stranger."))
            worker.close()
            return
        self._part()
        worker.settimeout(None)
        self._worker, self._attempt = worker, hello.attempt
        self._tell(worker, Welcome(self._engine.version, self._digest, self._loads))

    def _obey(self, worker: socket.socket) -> None:
        """What the worker asks for. What the engine does not survive ends this process, once it is told."""
        try:
            frame = receive(worker, ToServer)
        except (EOFError, OSError, ValueError):
            self._part()
            return
        try:
            self._answer(worker, frame)
        except Exception as error:
            _leave_word(self._listener, why := f"{type(error).__name__}: {error}")
            self._tell(worker, Refused(why))
            raise

    def _answer(self, worker: socket.socket, frame: ToServer) -> None:
        match frame:
            case Load(folder, files, digest):
                self._digest = ""
                if self._engine.load(folder, files):
                    self._digest, self._loads = digest, self._loads + 1
                self._tell(worker, Loaded(self._digest, self._loads))
            case Sleep(level):
                self._engine.sleep(level)
                self._digest = self._digest if level < 2 else ""
                self._tell(worker, Loaded(self._digest, self._loads))
            case Generate():
                for response in self._engine.generate(frame, lambda: self._left(worker)):
                    self._tell(worker, response)
            case Hello():
                self._part()

    def _left(self, worker: socket.socket) -> bool:
        """Whether this worker is gone, or a newer one has its place. Who waits for responses says nothing."""
        ready = select.select([self._listener, worker], (), (), 0)[0] if self._worker is worker else []
        if self._listener in ready:
            self._meet()
        elif ready:
            self._part()
        return self._worker is not worker

    def _tell(self, worker: socket.socket, frame: FromServer) -> None:
        try:
            send(worker, frame)
        except OSError:
            self._part()

    def _part(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def main(text: str) -> None:
    """Serve; refuse, with the reason, where vLLM does not start."""
    args = msgspec.json.decode(text, type=ServerArgs)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != args.agent:
        return
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(name, signal.SIG_IGN)
    if args.cpus:
        os.sched_setaffinity(0, args.cpus)
    listener = socket.socket(fileno=args.listener)
    try:
        engine = Served(args)
    except BaseException as error:
        traceback.print_exc()
        _leave_word(listener, f"vLLM did not start: {type(error).__name__}: {error}")
        raise SystemExit(1) from None
    Server(engine, listener).serve()


def _leave_word(listener: socket.socket, why: str) -> None:
    """Tell those who wait at the door, and leave it beside that for those who come: this server is no more."""
    with contextlib.suppress(OSError):
        Path(listener.getsockname()).with_name(WHY).write_text(why)
    listener.settimeout(0.0)
    with contextlib.suppress(OSError):
        while True:
            send(listener.accept()[0], Refused(why))


if __name__ == "__main__":
    main(sys.argv[1])
