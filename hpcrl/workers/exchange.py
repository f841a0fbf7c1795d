"""What the ranks of the toy host do together: sums, gathers, broadcasts and swaps of small arrays, over sockets."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge

import numpy as np

from hpcrl.errors import PeerLostError
from hpcrl.wire.address import Network, listen


class Exchange:
    """Of one rank with all others, over authenticated sockets. What is sent is small enough for a socket's buffer."""

    def __init__(self, rank: int, secret: bytes, network: Network) -> None:
        self._rank = rank
        self._secret = secret
        self._listener = listen(network)
        self._peers: dict[int, Connection] = {}
        self._number = 0

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def connect(self, addresses: Sequence[str]) -> None:
        """Every lower rank listens to every higher one."""
        with self._together("connecting", range(len(addresses))):
            for peer, address in enumerate(addresses[: self._rank]):
                host, port = address.split(":")
                self._peers[peer] = _undelayed(Client((host, int(port)), authkey=self._secret))
                self._peers[peer].send_bytes(str(self._rank).encode())
            for _ in addresses[self._rank + 1 :]:
                connection = _undelayed(Connection(self._listener.accept()[0].detach()))
                deliver_challenge(connection, self._secret)
                answer_challenge(connection, self._secret)
                self._peers[int(connection.recv_bytes())] = connection

    def begin_unit(self) -> None:
        """Count operations anew: a unit of work begins."""
        self._number = 0

    def sum(self, mine: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
        """The sum of everybody's array, added in rank order."""
        total = np.zeros_like(mine)
        with self._together("sum", ranks):
            for theirs in self._all(mine.tobytes(), ranks):
                total += np.frombuffer(theirs, mine.dtype).reshape(mine.shape)
        return total

    def gather(self, mine: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
        """Everybody's array, one behind the other in the order of the ranks."""
        with self._together("gather", ranks):
            return np.concatenate([np.frombuffer(theirs, mine.dtype) for theirs in self._all(mine.tobytes(), ranks)])

    def broadcast(self, mine: bytes, source: int, ranks: Sequence[int]) -> bytes:
        """What the source has; `mine` counts there alone."""
        with self._together("broadcast", ranks):
            if source != self._rank:
                return self._peers[source].recv_bytes()
            for peer in ranks:
                if peer != self._rank:
                    self._peers[peer].send_bytes(mine)
        return mine

    def swap(self, sends: Sequence[tuple[int, bytes]], receives: Sequence[int], ranks: Sequence[int]) -> list[bytes]:
        """Send so much to each of these peers, and receive from each of those, in order, among these ranks."""
        with self._together("swap", ranks):
            for peer, data in sends:
                self._peers[peer].send_bytes(data)
            return [self._peers[peer].recv_bytes() for peer in receives]

    def _all(self, mine: bytes, ranks: Sequence[int]) -> list[bytes]:
        for peer in ranks:
            if peer != self._rank:
                self._peers[peer].send_bytes(mine)
        return [mine if peer == self._rank else self._peers[peer].recv_bytes() for peer in ranks]

    @contextmanager
    def _together(self, operation: str, ranks: Sequence[int]) -> Iterator[None]:
        self._number += 1
        try:
            yield
        except (EOFError, OSError, AuthenticationError) as error:
            raise PeerLostError(ranks, operation, self._number, self._rank, error) from error

    def close(self) -> None:
        for connection in self._peers.values():
            connection.close()
        self._listener.close()


def _undelayed(connection: Connection) -> Connection:
    """What is small goes at once."""
    with socket.socket(fileno=os.dup(connection.fileno())) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
