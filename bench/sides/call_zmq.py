"""A bare ZeroMQ echo between two processes, ROUTER and DEALER, msgpack in and out.

Arguments: bytes of a message, `curve` or `plain`.
"""

import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection

import msgspec
import zmq
from serving import serve

ECHOES = 1000


def echo(address: str, keys: tuple[bytes, bytes] | None, pipe: Connection) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    if keys is not None:
        socket.curve_publickey, socket.curve_secretkey = keys
        socket.curve_serverkey = keys[0]
    socket.connect(address)
    socket.send(b"up")
    pipe.send("up")
    while True:
        socket.send(msgspec.msgpack.encode(msgspec.msgpack.decode(socket.recv())))


def main() -> None:
    size, keys = int(sys.argv[1]), zmq.curve_keypair() if sys.argv[2] == "curve" else None
    socket = zmq.Context().socket(zmq.ROUTER)
    if keys is not None:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = keys
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=echo, args=(f"tcp://127.0.0.1:{port}", keys, theirs), daemon=True).start()
    ours.recv()
    peer = socket.recv_multipart()[0]
    message = ["x" * (size - 10)]

    def trip() -> float:
        started = time.perf_counter()
        socket.send_multipart([peer, msgspec.msgpack.encode(message)])
        msgspec.msgpack.decode(socket.recv_multipart()[1])
        return time.perf_counter() - started

    serve(lambda: {"us": statistics.median(trip() for _ in range(ECHOES)) * 1e6})


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
