"""Messages between simulated parties."""

from hpcrl.simulation.clock import VirtualClock
from hpcrl.simulation.cluster import Mail
from hpcrl.simulation.durations import MESSAGE_NS
from hpcrl.wire.messages import Ack


def test_messages_of_one_moment_arrive_together_but_not_before_what_was_planned_between_them() -> None:
    clock, happened = VirtualClock(), list[object]()
    mail = Mail(lambda messages: happened.append([to for to, _ in messages]), clock)
    mail.send("a", Ack(1))
    mail.send("b", Ack(2))
    clock.at(MESSAGE_NS, lambda: happened.append("between"))
    mail.send("c", Ack(3))
    clock.go_to(1)
    mail.send("d", Ack(4))
    clock.go_to(2 * MESSAGE_NS)
    assert happened == [["a", "b"], "between", ["c"], ["d"]]


def test_what_is_sent_as_messages_arrive_is_on_its_way_as_long() -> None:
    clock, heard = VirtualClock(), list[tuple[int, str]]()

    def hear(messages: list[tuple[str, object]]) -> None:
        for to, _ in messages:
            heard.append((clock.now_ns, to))
            if to == "there":
                mail.send("back", Ack(1))

    mail = Mail(hear, clock)
    mail.send("there", Ack(1))
    clock.go_to(3 * MESSAGE_NS)
    assert heard == [(MESSAGE_NS, "there"), (2 * MESSAGE_NS, "back")]
