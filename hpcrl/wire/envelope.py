"""A message on its way: who has sent it, and which of the sender's it is; as msgpack, and back."""

import msgspec

from hpcrl.wire.messages import Message


class Envelope(msgspec.Struct, frozen=True):
    """A message with who sent it and the how-manieth of that sender it is; a number that is not larger is a replay."""

    sender: str
    seq: int
    body: Message | msgspec.Raw
    """As it is, or encoded already: one that goes to many is encoded once."""


class Received(msgspec.Struct, frozen=True):
    """An envelope as it is read."""

    sender: str
    seq: int
    body: Message


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Received)


def encode(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)


def encode_body(body: Message) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode(body))


def decode(frame: bytes) -> Received:
    """Raises `msgspec.DecodeError` or `msgspec.ValidationError` on anything that is not an envelope."""
    return _DECODER.decode(frame)
