"""A relay is one connection for the workers of a node; to whom it carries messages it is as if each had its own."""

import pytest
import zmq
from support.hearing import within

from hpcrl.wire.bundle import Bundle
from hpcrl.wire.channel import Gatekeeper, Hub, Link, RunKey
from hpcrl.wire.envelope import Envelope, encode
from hpcrl.wire.messages import Ack, Message, Syn
from hpcrl.wire.relay import GAP_S, Outbox, Relay, gap_of

WORKERS = tuple(f"worker-{rank}" for rank in range(3))


def test_workers_and_hub_hear_each_other_in_order_by_one_connection(context: zmq.Context, key: RunKey) -> None:
    behind = zmq.Context()
    Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    relay = Relay(behind, key, "relay-0", hub.address, len(WORKERS))
    relay.start()
    links = [Link(context, key, name, relay.address) for name in WORKERS]
    for request in range(5):
        for rank, link in enumerate(links):
            link.send(Syn(request, rank))
    heard: list[tuple[bytes, Message]] = []

    def listen() -> list[tuple[bytes, Message]]:
        heard.extend((identity, envelope.body) for identity, envelope, _ in hub.receive())
        return heard if len(heard) == 15 else []

    assert within(30, listen)
    for rank, name in enumerate(WORKERS):
        assert [body for identity, body in heard if identity == name.encode()] == [Syn(it, rank) for it in range(5)]
    for link in links:
        for request in range(3):
            hub.send(link.name.encode(), Ack(request))
        assert link.receive() == []
    hub.flush()
    for link in links:
        answers: list[tuple[int, Message]] = []

        def answered(link: Link = link, answers: list[tuple[int, Message]] = answers) -> list:
            answers.extend((envelope.seq, envelope.body) for envelope, _ in link.receive())
            return answers if len(answers) == 3 else []

        assert within(30, answered) == [(it + 1, Ack(it)) for it in range(3)]
        assert link.incoming.lost_from == []
    relay.close()
    behind.term()


def test_what_got_lost_on_the_way_is_missed_by_whom_it_was_for(context: zmq.Context, key: RunKey) -> None:
    Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    link = Link(context, key, "relay-0", hub.address)
    for carried in ((("worker-0", 1), ("worker-1", 1)), (("worker-0", 3), ("worker-1", 2), ("worker-0", 3))):
        link.send(Bundle([(who.encode(), encode(Envelope(who, number, Syn(number, 0)))) for who, number in carried]))
    heard: list[bytes] = []

    def listen() -> list[bytes]:
        heard.extend(identity for identity, _, _ in hub.receive())
        return heard if len(heard) == 4 else []

    assert within(30, listen) == [b"worker-0", b"worker-1", b"worker-0", b"worker-1"]
    assert hub.incoming.lost_from == ["worker-0"] and hub.incoming.refused == 1


def test_who_is_heard_directly_is_answered_directly(context: zmq.Context, key: RunKey) -> None:
    Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    link, other = Link(context, key, "relay-0", hub.address), Link(context, key, "agent-0", hub.address)
    link.send(Bundle([(b"worker-0", encode(Envelope("worker-0", 1, Syn(1, 0))))]))
    other.send(Syn(2, 0))
    heard: list[bytes] = []

    def listen() -> list[bytes]:
        heard.extend(identity for identity, _, _ in hub.receive())
        return heard if len(heard) == 2 else []

    assert set(within(30, listen)) == {b"worker-0", b"agent-0"}
    hub.send(b"agent-0", Ack(2))
    assert [envelope.body for envelope, _ in within(30, other.receive)] == [Ack(2)]


@pytest.mark.parametrize(("workers", "gap_s"), [(1, GAP_S / 100), (50, GAP_S / 2), (1024, GAP_S)])
def test_the_fewer_workers_a_run_has_the_sooner_their_master_hears_them(workers: int, gap_s: float) -> None:
    outbox = Outbox(gap_of(workers))
    outbox.add(b"worker-0", b"one")
    outbox.take(0.0)
    outbox.add(b"worker-0", b"two")
    assert outbox.wait_s(0.0) == pytest.approx(gap_s)


@pytest.mark.parametrize(("last_s", "waits_s"), [(GAP_S, 0.0), (2 * GAP_S, 0.0), (GAP_S / 4, GAP_S * 3 / 4)])
def test_what_is_said_alone_goes_at_once_and_what_follows_it_together(last_s: float, waits_s: float) -> None:
    outbox = Outbox(GAP_S)
    assert outbox.wait_s(0.0) is None
    outbox.add(b"worker-0", b"one")
    assert outbox.wait_s(0.0) == 0.0
    assert outbox.take(0.0) == Bundle([(b"worker-0", b"one")])
    outbox.add(b"worker-1", b"two")
    outbox.add(b"worker-0", b"three")
    assert outbox.wait_s(last_s) == pytest.approx(waits_s)
    assert outbox.take(last_s).frames == [(b"worker-1", b"two"), (b"worker-0", b"three")]
