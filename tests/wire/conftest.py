"""A context whose sockets are closed behind a test, and a key."""

from collections.abc import Iterator

import pytest
import zmq

from hpcrl.wire.channel import RunKey


@pytest.fixture
def key() -> RunKey:
    return RunKey.generate()


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    plain_socket, made = context.socket, []
    context.__dict__["socket"] = lambda kind: made.append(plain_socket(kind)) or made[-1]
    yield context
    for socket in made:
        if socket.type != zmq.REP:
            socket.close(0)
    context.term()
