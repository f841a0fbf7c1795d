"""A pool of gloo ranks on this machine."""

import contextlib
import importlib.util
import inspect
import multiprocessing
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from support.forkserver import Kind, start

TIMEOUT_S = 60.0


class RankPool:
    """`size` processes that have joined one `ParallelContext`; each runs `function(context, *args)` when told to.

    The function stands at the top of a file: a rank imports that file by path, so test modules can hold their own.
    """

    def __init__(self, size: int, kind: Kind = "torch") -> None:
        self.size = size
        pairs = [multiprocessing.Pipe() for _ in range(size)]
        self._pipes = [ours for ours, _ in pairs]
        self._processes = [
            start(_rank_main, rank, size, theirs, kind=kind, daemon=True) for rank, (_, theirs) in enumerate(pairs)
        ]
        for _, theirs in pairs:
            theirs.close()
        invitation = self._pipes[0].recv()
        for pipe in self._pipes:
            pipe.send(invitation)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the function returned on each rank. Raises AssertionError with the traceback of a rank that failed."""
        task = pickle.dumps((inspect.getfile(function), function.__qualname__, args))
        for pipe in self._pipes:
            pipe.send_bytes(task)
        replies = [self._receive(rank, pipe) for rank, pipe in enumerate(self._pipes)]
        failed = [f"rank {rank}:\n{value}" for rank, (done, value) in enumerate(replies) if not done]
        if failed:
            raise AssertionError("\n".join(failed))
        return [value for _, value in replies]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(1.0)
            process.kill()

    def _receive(self, rank: int, pipe: Connection) -> tuple[bool, Any]:
        if not pipe.poll(TIMEOUT_S):
            return False, f"no answer in {TIMEOUT_S} s"
        try:
            return pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self._processes[rank].join(TIMEOUT_S)  # its end of the pipe closes a moment before it is gone
            return False, f"died with exit code {self._processes[rank].exitcode}"


@contextlib.contextmanager
def gloo_pool(size: int, kind: Kind = "torch") -> Iterator[RankPool]:
    pool = RankPool(size, kind)
    try:
        yield pool
    finally:
        pool.close()


def everyone(context: Any) -> Any:
    """On a rank: the group of all ranks of its pool."""
    import torch.distributed as dist

    ranks = tuple(range(dist.get_world_size()))
    context.form([ranks])
    return context.group(ranks)


def _rank_main(rank: int, size: int, pipe: Connection) -> None:
    import torch

    from hpcrl.parallel.context import ParallelContext

    torch.set_num_threads(1)
    context = ParallelContext(rank, size, torch.device("cpu"))
    invitation = context.invite()
    if rank == 0:
        pipe.send(invitation)
    context.join(pipe.recv(), timeout_s=TIMEOUT_S)
    while True:
        try:
            path, name, args = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        pipe.send_bytes(pickle.dumps(_attempt(path, name, context, args)))


def _attempt(path: str, name: str, context: Any, args: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, getattr(_module(path), name)(context, *args)
    except BaseException:
        return False, traceback.format_exc()


def _module(path: str) -> Any:
    """The module in this file, imported once under its path as name."""
    if path not in sys.modules:
        spec = importlib.util.spec_from_file_location(path, path)
        assert spec is not None and spec.loader is not None
        sys.modules[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path])
    return sys.modules[path]
