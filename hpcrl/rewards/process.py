"""The process between a worker and a reward function: `… process DESCRIPTOR WORKER AHEAD`, started by the worker.

Forks the one that runs the function, and hands rows to it and its answers back. It alone has the worker's socket,
and learns the nonce that answers begin with only after the fork: whatever the function writes, and wherever, no answer
of its making is believed.
"""

import os
import select
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from hpcrl.processes import die_with_parent, tell_faults
from hpcrl.rewards.function import AnswerBox, serve
from hpcrl.rewards.messages import NONCE_BYTES, Reply
from hpcrl.stacks import file_of_parent, show_when_asked

CHUNK_BYTES = 1 << 16
LOOK_AGAIN_MS = 1000
"""How often a function that is silent is looked for: one that has forked may end without closing its socket."""


def main(descriptor: int, worker_pid: int, ahead: int) -> None:
    """Hand on lines and answers until the worker has gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    die_with_parent(worker_pid)
    tell_faults()
    show_when_asked(file_of_parent())
    worker, box, pid = socket.socket(fileno=descriptor), AnswerBox(ahead), os.getpid()
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        _be_the_function(worker, ours, theirs, box, pid)
    theirs.close()
    Relay(worker, ours, child, box).run()


def _be_the_function(
    worker: socket.socket, ours: socket.socket, theirs: socket.socket, box: AnswerBox, parent_pid: int
) -> None:
    """In the child; never returns."""
    code = 1
    try:
        worker.close()
        ours.close()
        serve(theirs, box, parent_pid)
        code = 0
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


class Relay:
    """Lines from the worker to the function, answers from the box to the worker."""

    def __init__(self, worker: socket.socket, function: socket.socket, pid: int, box: AnswerBox) -> None:
        self._worker, self._function, self._pid, self._box = worker, function, pid, box
        self._nonce = worker.recv(NONCE_BYTES, socket.MSG_WAITALL)
        self._lines = b""
        self._next = 1
        self._ended: int | None = None

    def run(self) -> None:
        """Until the function's process has ended, and then until the worker has closed its socket."""
        poll = select.poll()
        worker, function = self._worker.fileno(), self._function.fileno()
        while self._ended is None:
            poll.register(worker, 0 if self._lines else select.POLLIN)
            poll.register(function, select.POLLIN | (select.POLLOUT if self._lines else 0))
            ready = dict(poll.poll(LOOK_AGAIN_MS))
            if not ready:
                self._wait(os.WNOHANG)
            if ready.get(function, 0) & ~select.POLLOUT:
                self._listen()
            if worker in ready:
                chunk = self._worker.recv(CHUNK_BYTES)
                if not chunk:
                    return
                self._lines += chunk
            self._hand_on()
        self._answer(msgspec.json.encode(Reply(ended=self._ended)))
        while self._worker.recv(CHUNK_BYTES):
            pass

    def _hand_on(self) -> None:
        """What the function's socket takes now."""
        try:
            if self._lines and self._ended is None:
                self._lines = self._lines[self._function.send(self._lines, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return
        except OSError:
            self._wait(0)

    def _listen(self) -> None:
        """It has sent something, whatever that is, or closed its socket, with which it is of no use any more."""
        if not self._function.recv(CHUNK_BYTES):
            self._wait(0)
        self._answer_all()

    def _wait(self, options: int) -> None:
        pid, status = os.waitpid(self._pid, options)
        if pid:
            self._ended = os.waitstatus_to_exitcode(status)
            self._answer_all()

    def _answer_all(self) -> None:
        found = []
        while (answer := self._box.get(self._next)) is not None:
            found.append(answer)
            self._next += 1
        self._answer(*found)

    def _answer(self, *answers: bytes) -> None:
        if answers:
            self._worker.sendall(b"".join(self._nonce + answer + b"\n" for answer in answers))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
