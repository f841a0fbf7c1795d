"""What a master that leaves does, in this order."""

from pathlib import Path

import pytest
from support.chaos import create_run, toy_experiment

from hpcrl.config.cluster import Abilities
from hpcrl.durable.records import Command, Verdict
from hpcrl.errors import ExitCode
from hpcrl.master.master import Master
from hpcrl.processes import Signals
from hpcrl.wire.address import LOOPBACK
from hpcrl.wire.channel import Hub
from hpcrl.wire.messages import AgentHello, Finish, Message


def test_the_verdict_is_on_disk_before_anybody_is_told_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is told asks what became of the run, and a master that is killed in between has told nobody."""
    run = create_run(tmp_path / "run", toy_experiment())
    seen: list[Verdict | None] = []

    def send(_hub: Hub, _identity: bytes, body: Message) -> None:
        if isinstance(body, Finish):
            seen.append(run.read_verdict(0))

    monkeypatch.setattr(Hub, "send", send)
    signals = Signals()
    try:
        master = Master(run, "first", signals, LOOPBACK, Abilities())
        master._reactor.members.agent(b"agent-0", AgentHello(0, "host", 8, 1))
        run.publish_command(Command("drain", "first"))
        assert master.serve_run() == ExitCode.NEVER_REQUEUE
    finally:
        signals.close()
    assert [verdict and verdict.state for verdict in seen] == ["stopped"]
