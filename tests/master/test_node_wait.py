"""Waiting for nodes: what is said of those that do not come."""

from pathlib import Path

from support.chaos import create_run, toy_experiment

from hpcrl.master.allocation import AllocationWatch
from hpcrl.master.meeting_point import RunMeetingPoint
from hpcrl.master.members import Members
from hpcrl.master.node_wait import NodeWait
from hpcrl.wire.messages import AgentHello


def test_where_nobody_starts_a_lost_node_again_no_limit_is_blamed(tmp_path: Path) -> None:
    run, now = create_run(tmp_path / "run", toy_experiment(nodes=2)), [0.0]
    members = Members(2, 10.0, lambda: now[0])
    watch = AllocationWatch(None, lambda event: None, lambda: now[0])
    nodes = NodeWait(
        RunMeetingPoint(run, "first"), toy_experiment(nodes=2).cluster, False, members, watch, lambda: now[0]
    )
    nodes.begin(0, "tcp://master")
    for node in range(2):
        members.agent(b"agent%d" % node, AgentHello(node, "host", 2, node))
    assert nodes.is_complete()
    members.dismiss(1)
    assert not nodes.is_complete()
    now[0] += 0.1
    ending = nodes.given_up()
    assert ending is not None and ending.state == "incomplete"
    assert ending.reason.startswith(
        "1 of 2 nodes are left, missing: [1]; nobody starts them again here. `hpcrl resume "
    )
