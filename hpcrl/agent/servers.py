"""The servers that make responses beside this node's workers: owned by the agent, and so outlive these.

Each has a folder in shared memory with its socket, where weights are left for it, and folders for what it compiles. An
attempt takes over servers that are told the same; others end.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec

from hpcrl.agent.compile_caches import CompileCaches
from hpcrl.agent.gpus import DeviceBinding
from hpcrl.backends.packages import OWN_VARIABLES
from hpcrl.placement.servers import LOG, PID, TEMPORARY, WEIGHTS, WHY, ServerPlan
from hpcrl.processes import SHARED, kill_group, shared_memory_of
from hpcrl.scratch import ScratchFolder, goes_with

PREFIX = "hpcrl-served-"
WAITING = 8
"""Workers at the door."""


@dataclass(frozen=True)
class Where:
    """What a server computes on."""

    cuda: bool
    environment: Mapping[str, str]
    cpus: tuple[int, ...]
    threads: int

    @staticmethod
    def of(bindings: Sequence[DeviceBinding], threads: int) -> "Where":
        """On what several workers have. Each of these sees its own; the server sees all."""
        environment: dict[str, str] = {}
        for binding in bindings:
            for name, value in binding.environment.items():
                before = environment.get(name)
                environment[name] = value if before in (None, value) else f"{before},{value}"
        cpus = tuple(sorted({cpu for binding in bindings for cpu in binding.cpus}))
        return Where(bindings[0].device != "cpu", environment, cpus, threads)


class Server:
    """One of them, from its start to `close`."""

    def __init__(self, told: ServerPlan, where: Where, out: Path) -> None:
        """`out`: the file that it prints to."""
        self.told, self.where = told, where
        self._folder = ScratchFolder(PREFIX, _roomy(told.weight_bytes))
        self._caches = CompileCaches(os.environ, told.folders)
        folder = self._folder.path
        for name in (WEIGHTS, TEMPORARY):
            (folder / name).mkdir(mode=0o700)
        self.socket = folder / "socket"
        listener, self._began = socket.socket(socket.AF_UNIX), time.time()
        try:
            listener.bind(str(self.socket))
            self.socket.chmod(0o600)
            listener.listen(WAITING)
            self._process = self._started(listener, out)
        finally:
            listener.close()  # the server's own stays: who waits at its door learns when it is gone
        (folder / LOG).write_text(str(out))
        (folder / PID).write_text(str(self._process.pid))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None and not (self._folder.path / WHY).exists()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End it, and all that it has started."""
        with suppress(OSError):  # there is no room even to note it
            goes_with(self._folder.path, shared_memory_of(self._process.pid, self._began))
        kill_group(self._process.pid)
        self._process.wait()
        self._folder.remove()
        self._caches.remove()

    def _started(self, listener: socket.socket, out: Path) -> "subprocess.Popen[bytes]":
        told, where = self.told, self.where
        spec = find_spec(told.module)
        assert spec is not None and spec.origin is not None, told.module
        own = {"agent": os.getpid(), "listener": listener.fileno(), "cuda": where.cuda, "cpus": where.cpus}
        args = msgspec.json.encode(dict(told.settings) | own).decode()
        # Another interpreter is not to find this one's packages.
        kept = (it for it in os.environ.items() if not told.python or it[0] not in OWN_VARIABLES)
        environment = dict(kept)
        paths = [str(Path(spec.origin).parent), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {"OMP_NUM_THREADS": str(where.threads), "PYTHONPATH": os.pathsep.join(paths)}
        environment |= {"TMPDIR": str(self._folder.path / TEMPORARY)}
        environment |= dict(told.variables) | self._caches.environment() | dict(where.environment)
        opened = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                [told.python or sys.executable, "-P", spec.origin, args],
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=opened,
                env=environment,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )
        finally:
            os.close(opened)


class Servers:
    """Of one agent, by the model and the worker that they serve."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], Server] = {}

    def serve(self, wanted: Mapping[ServerPlan, Where], out: Path) -> list[Server]:
        """Have these, and no others, in their order. Each prints to `out` and its number; which, `log` beside its
        socket says. Raises OSError where one cannot be started."""
        keys = {(told.model, told.head): (told, where) for told, where in wanted.items()}
        for key, server in list(self._of.items()):
            if not server.is_alive or keys.get(key) != (server.told, server.where):
                self._of.pop(key).close()
        for key, (told, where) in keys.items():
            if key not in self._of:
                self._of[key] = Server(told, where, out.with_name(f"{out.stem}-{told.head}.out"))
        return [self._of[key] for key in keys]

    def close(self) -> None:
        while self._of:
            self._of.popitem()[1].close()


def _roomy(bytes_: int) -> Path | None:
    """Shared memory with room for so many twice; else what $TMPDIR is on."""
    with suppress(OSError):
        if os.access(SHARED, os.W_OK) and shutil.disk_usage(SHARED).free > 2 * bytes_:
            return SHARED
    return None
