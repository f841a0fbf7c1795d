"""What the master makes of what agents say of their nodes."""

from hpcrl.errors import ExitCode
from hpcrl.master.node_check import WorkerDevice, check_nodes, find_duplicates
from hpcrl.placement.plan import WorkerPlan
from hpcrl.wire.envelope import Envelope, decode, encode
from hpcrl.wire.messages import AgentHello, Trouble

WORKERS = [WorkerPlan(rank, rank // 2, rank % 2, "m:C") for rank in range(4)]


def hello(node: int, *devices: str, host: str = "n1", trouble: Trouble | None = None) -> AgentHello:
    return AgentHello(node, host, 2, 1, devices=devices, trouble=trouble)


def test_devices_of_their_own_and_no_devices_are_fine():
    assert check_nodes({0: hello(0, "a", "b"), 1: hello(1, "c", "d")}, WORKERS) == (ExitCode.DONE, "")
    assert check_nodes({0: hello(0), 1: hello(1)}, WORKERS) == (ExitCode.DONE, "")


def test_two_workers_of_a_host_with_one_device_are_refused_by_name():
    code, why = check_nodes({0: hello(0, "a", "b"), 1: hello(1, "c", "a")}, WORKERS)
    assert code == ExitCode.CONFIGURATION
    assert "worker-0 and worker-3 have the same GPU a on n1" in why
    code, why = check_nodes({0: hello(0, "a", "a"), 1: hello(1, "c", "d")}, WORKERS)
    assert code == ExitCode.CONFIGURATION and "worker-0 and worker-1" in why


def test_the_same_name_on_two_hosts_is_no_duplicate():
    assert check_nodes({0: hello(0, "a", "b"), 1: hello(1, "a", "b", host="n2")}, WORKERS)[0] == ExitCode.DONE


def test_every_duplicate_is_named():
    given = [WorkerDevice(f"worker-{rank}", "n", "a") for rank in range(3)]
    assert len(find_duplicates(given)) == 2


def test_a_node_in_trouble_ends_the_attempt_and_what_requeueing_does_not_cure_decides():
    again, never = Trouble("no driver", ExitCode.REQUEUE), Trouble("too few GPUs", ExitCode.CONFIGURATION)
    assert check_nodes({0: hello(0, trouble=again), 1: hello(1, "a", "b")}, WORKERS)[0] == ExitCode.REQUEUE
    code, why = check_nodes({0: hello(0, trouble=again), 1: hello(1, trouble=never)}, WORKERS)
    assert code == ExitCode.CONFIGURATION and "agent-0 on n1: no driver" in why and "too few GPUs" in why


def test_trouble_crosses_the_wire():
    told = Envelope("agent-0", 1, hello(0, "a", trouble=Trouble("x", 64)))
    came = decode(encode(told))
    assert (came.sender, came.seq, came.body) == (told.sender, told.seq, told.body)


def test_cpu_workers_need_no_device_beside_those_that_have_one():
    more = [*WORKERS, WorkerPlan(4, 0, 2, "c:D"), WorkerPlan(5, 1, 2, "c:D")]
    assert check_nodes({0: hello(0, "a", "b"), 1: hello(1, "c", "d")}, more) == (ExitCode.DONE, "")
