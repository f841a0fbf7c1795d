"""Channels: members talk, strangers and replays are refused."""

import pytest
import zmq
from support.hearing import within

from hpcrl.wire.channel import Gatekeeper, Hub, Link, RunKey
from hpcrl.wire.envelope import Envelope, encode
from hpcrl.wire.messages import Ack, Beat, Syn


def test_a_member_is_heard_and_answered(context: zmq.Context, key: RunKey) -> None:
    Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    link = Link(context, key, "worker-0", hub.address)
    link.send(Syn(7, 0))
    [(identity, envelope, _)] = within(30, hub.receive)
    assert (identity, envelope.sender, envelope.body) == (b"worker-0", "worker-0", Syn(7, 0))
    hub.send(identity, Ack(7), [b"raw"])
    [(answer, raw)] = within(30, link.receive)
    assert answer.body == Ack(7) and raw == [b"raw"]


def test_a_stranger_with_another_key_is_refused(context: zmq.Context, key: RunKey) -> None:
    gate = Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    stranger = RunKey.generate()
    outside = zmq.Context()
    link = Link(outside, RunKey(key.public, key.secret), "worker-0", hub.address)
    link.close(0)
    socket = outside.socket(zmq.DEALER)
    socket.linger = 0
    socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = (
        key.public,
        stranger.public,
        stranger.secret,
    )
    socket.connect(hub.address)
    socket.send(encode(Envelope("worker-0", 1, Beat())))
    assert within(30, lambda: [gate.refused] if gate.refused else [])
    assert hub.receive() == []
    outside.destroy(linger=0)


def test_an_unencrypted_peer_is_not_heard(context: zmq.Context, key: RunKey) -> None:
    Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    plain = context.socket(zmq.DEALER)
    plain.linger = 0
    plain.connect(hub.address)
    plain.send(encode(Envelope("worker-0", 1, Beat())))
    assert within(0.5, hub.receive) == []


def test_a_replayed_frame_is_refused_and_counted(context: zmq.Context, key: RunKey) -> None:
    Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    link = Link(context, key, "worker-0", hub.address)
    frame = encode(Envelope("worker-0", 5, Syn(1, 0)))
    for sent in (frame, frame, encode(Envelope("worker-0", 4, Syn(2, 0))), encode(Envelope("worker-0", 6, Syn(3, 0)))):
        link.socket.send_multipart([sent])
    heard: list[int] = []

    def listen() -> list[int]:
        heard.extend(envelope.body.request for _, envelope, _ in hub.receive() if isinstance(envelope.body, Syn))
        return heard if len(heard) == 2 else []

    assert within(30, listen) == [1, 3]
    assert hub.incoming.refused == 2


@pytest.mark.parametrize("frame", [b"", b"\xff\xff", b"\x93\x01\x02\x03"])
def test_a_frame_that_is_no_envelope_is_refused(context: zmq.Context, key: RunKey, frame: bytes) -> None:
    Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    link = Link(context, key, "worker-0", hub.address)
    link.socket.send_multipart([frame])
    link.send(Beat())
    [(_, envelope, _)] = within(30, hub.receive)
    assert envelope.body == Beat()
    assert hub.incoming.refused == 1


def test_a_message_that_got_lost_is_noticed(context: zmq.Context, key: RunKey) -> None:
    Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    link = Link(context, key, "worker-0", hub.address)
    for number in (1, 2, 4):
        link.socket.send_multipart([encode(Envelope("worker-0", number, Syn(number, 0)))])
    heard: list[int] = []

    def listen() -> list[int]:
        heard.extend(envelope.body.request for _, envelope, _ in hub.receive() if isinstance(envelope.body, Syn))
        return heard if len(heard) == 3 else []

    assert within(30, listen) == [1, 2, 4]
    assert hub.incoming.lost_from == ["worker-0"]


def test_the_hub_numbers_what_each_member_gets(context: zmq.Context, key: RunKey) -> None:
    Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    links = [Link(context, key, f"worker-{rank}", hub.address) for rank in range(2)]
    for link in links:
        link.send(Beat())
        [(identity, _, _)] = within(30, hub.receive)
        for request in range(3):
            hub.send(identity, Ack(request))
    for link in links:
        heard: list[int] = []

        def listen(link: Link = link, heard: list[int] = heard) -> list[int]:
            heard.extend(envelope.seq for envelope, _ in link.receive())
            return heard if len(heard) == 3 else []

        assert within(30, listen) == [1, 2, 3]
        assert link.incoming.lost_from == []
