"""Authenticated message channels over ZeroMQ: a `Hub` that many connect to, a `Link` that connects to one hub.

Every connection is encrypted and authenticated by CURVE with the one key pair of the run: a peer that does not hold it
is refused in the handshake. Inside, each sender numbers its envelopes; a frame whose number is not larger than the
last of its sender, or which is not an envelope, is dropped and counted; a number that was left out means that a message
got lost while a connection was made anew, and is told. A `Hub` reaches members by the relay that carried what they said
(`hpcrl.wire.relay`), if one did. Knows nothing of what the messages mean.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from hpcrl.durable.keys import advice, read_key
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError
from hpcrl.wire.address import LOOPBACK_ONLY, Network, listen
from hpcrl.wire.bundle import Bundle
from hpcrl.wire.envelope import Envelope, Received, decode, encode, encode_body
from hpcrl.wire.messages import Message
from hpcrl.wire.peer_messages import Raw

_MORE, _NOW = int(zmq.SNDMORE), int(zmq.NOBLOCK)
"""As numbers: pyzmq's own words cost more than what they ask for."""
MOST_AT_ONCE = 2000
"""Messages that are taken before whoever takes them does something else: a thousand members may never be silent."""
ZAP_ADDRESS = "inproc://zeromq.zap.01"


@dataclass(frozen=True)
class RunKey:
    """The key pair of a run, Z85. Whoever holds it is a member."""

    public: bytes
    secret: bytes

    @classmethod
    def generate(cls) -> "RunKey":
        public, secret = zmq.curve_keypair()
        return cls(public, secret)

    @classmethod
    def of(cls, run: RunDirectory) -> "RunKey":
        """The keys of a run. Raises InternalError where they cannot be read, or do not belong together."""
        pair = read_key(run)
        key = cls(pair.public.encode(), pair.secret.encode())
        try:
            fits = zmq.curve_public(key.secret) == key.public
        except (ValueError, zmq.ZMQError):
            fits = False
        if not fits:
            raise InternalError(f"{run.key_json} is damaged: its keys do not belong together.", advice(run))
        return key


class Gatekeeper:
    """Answers ZeroMQ's authentication requests of one context: lets in holders of the run's key and nobody else.

    Its thread and socket end with the context (`Context.term`).
    """

    def __init__(self, context: zmq.Context, key: RunKey) -> None:
        self.refused = 0
        self._allowed = z85.decode(key.public)
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP_ADDRESS)
        self._thread = threading.Thread(target=self._answer, name="gatekeeper", daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        try:
            while True:
                self._answer_one()
        except zmq.ContextTerminated:
            self._socket.close(0)

    def _answer_one(self) -> None:
        version, request, _domain, _address, _identity, mechanism, *credentials = self._socket.recv_multipart()
        welcome = mechanism == b"CURVE" and credentials == [self._allowed]
        if not welcome:
            self.refused += 1
        status, text = (b"200", b"OK") if welcome else (b"400", b"not a member of this run")
        self._socket.send_multipart([version, request, status, text, b"member", b""])


class Incoming:
    """Drops what is not an envelope and what was seen before; `lost_from` are the senders of messages that got lost."""

    def __init__(self) -> None:
        self.refused = 0
        self.lost_from: list[str] = []
        self._last: dict[str, int] = {}

    def accept(self, frame: bytes) -> Received | None:
        try:
            envelope = decode(frame)
        except (msgspec.DecodeError, msgspec.ValidationError):
            self.refused += 1
            return None
        newer = envelope.seq - self._last.get(envelope.sender, 0)
        if newer <= 0:
            self.refused += 1
            return None
        if newer > 1:
            self.lost_from.append(envelope.sender)
        self._last[envelope.sender] = envelope.seq
        return envelope


class Hub:
    """A bound ROUTER: many members connect. `name` goes into the envelopes that it sends.

    Raises ConfigurationError where none of the network's ports is free.
    """

    def __init__(self, context: zmq.Context, key: RunKey, name: str, network: Network = LOOPBACK_ONLY) -> None:
        self.name = name
        self.incoming = Incoming()
        self._sent: defaultdict[bytes, int] = defaultdict(int)
        self._encoded: tuple[Message | None, msgspec.Raw] = None, msgspec.Raw()
        """What was sent last, to be sent to others."""
        self._relays: dict[bytes, bytes] = {}
        """Member → the relay that carries what it and this hub tell each other."""
        self._bundles: defaultdict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
        """By relay: what was not given to it yet."""
        self.socket = router(context, key)
        listening = listen(network)
        self.address = f"tcp://{network.host}:{listening.getsockname()[1]}"
        listening.setblocking(False)
        self.socket.setsockopt(zmq.USE_FD, listening.detach())
        self.socket.bind(self.address)

    def receive(self) -> list[tuple[bytes, Received, list[Raw]]]:
        """What has come and is accepted: (where it came from, envelope, raw frames)."""
        found, accept = list[tuple[bytes, Received, list[Raw]]](), self.incoming.accept
        for identity, frame, *raw in waiting(self.socket, addressed=True):
            if (envelope := accept(frame)) is None:
                continue
            if isinstance(envelope.body, Bundle):
                for member, carried in envelope.body.frames:
                    self._relays[member] = identity
                    if (inner := accept(carried)) is not None:
                        found.append((member, inner, []))
            else:
                found.append((identity, envelope, raw))
        return found

    def send(self, identity: bytes, body: Message, raw: Sequence[Raw] = ()) -> None:
        """At once, or with the next `flush`: what a relay carries, which takes no raw frames."""
        if body is not self._encoded[0]:
            self._encoded = body, encode_body(body)
        frame = self._numbered(identity, self._encoded[1])
        if raw:
            self.socket.send_multipart([identity, frame, *raw], copy=False)
        elif (relay := self._relays.get(identity)) is not None:
            self._bundles[relay].append((identity, frame))
        else:
            self._send(identity, frame)

    def flush(self) -> None:
        """Give relays what was sent to their members."""
        bundles, self._bundles = self._bundles, defaultdict(list)
        for relay, frames in bundles.items():
            self._send(relay, self._numbered(relay, Bundle(frames)))

    def _numbered(self, identity: bytes, body: Bundle | msgspec.Raw) -> bytes:
        self._sent[identity] += 1
        return encode(Envelope(self.name, self._sent[identity], body))

    def _send(self, identity: bytes, frame: bytes) -> None:
        self.socket.send(identity, _MORE)
        self.socket.send(frame)


class Link:
    """A DEALER connected to one hub."""

    def __init__(self, context: zmq.Context, key: RunKey, name: str, address: str) -> None:
        self.name = name
        self.incoming = Incoming()
        self._seq = 0
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = 0
        self.socket.identity = name.encode()
        self.socket.curve_serverkey = key.public
        self.socket.curve_publickey = key.public
        self.socket.curve_secretkey = key.secret
        self.socket.reconnect_ivl = 50
        self.socket.reconnect_ivl_max = 1000
        self.socket.connect(address)

    def receive(self) -> list[tuple[Received, list[Raw]]]:
        """What has come and is accepted: (envelope, raw frames)."""
        frames = [(self.incoming.accept(frame), raw) for frame, *raw in waiting(self.socket, addressed=False)]
        return [(envelope, raw) for envelope, raw in frames if envelope is not None]

    def send(self, body: Message, raw: Sequence[Raw] = ()) -> None:
        self._seq += 1
        self.socket.send_multipart([encode(Envelope(self.name, self._seq, body)), *raw])

    def close(self, linger_ms: int = 1000) -> None:
        """Close, giving what was sent last some time to leave."""
        self.socket.close(linger_ms)


def router(context: zmq.Context, key: RunKey) -> zmq.Socket:
    """One that members of the run may connect to, once it is bound."""
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 0
    socket.router_handover = True
    socket.curve_server = True
    socket.curve_secretkey = key.secret
    socket.curve_publickey = key.public
    return socket


def waiting(socket: zmq.Socket, addressed: bool) -> Iterator[list[Any]]:
    """The multipart messages that are there now, and no more of them than leave time for other things. Before one that
    is `addressed` comes a frame that says where from. Raw frames are not copied.

    A frame knows whether others follow it, which is dear to ask a socket.
    """
    for _ in range(MOST_AT_ONCE):
        try:
            frames: list[Any] = [socket.recv(_NOW)] if addressed else []
            frame = socket.recv(_NOW, copy=False)
        except zmq.Again:
            return
        frames.append(frame.bytes)
        while frame.more:
            frame = socket.recv(_NOW, copy=False)
            frames.append(frame.buffer)
        yield frames
