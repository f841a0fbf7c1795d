"""Shares of CPUs, on the lists of a node with two sockets, two GPUs at each, and two hardware threads per core."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.agent.affinity import parse_cpulist, share_cpus

SOCKET_0, SOCKET_1 = parse_cpulist("0-7,16-23\n"), parse_cpulist("8-15,24-31\n")
CORES = [{core, core + 16} for core in range(16)]
ALL = SOCKET_0 | SOCKET_1


def test_a_kernels_list_is_read():
    assert parse_cpulist("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpulist("\n") == frozenset()
    with pytest.raises(ValueError):
        parse_cpulist("f-x")


def test_workers_of_a_socket_split_its_cores_and_never_a_core():
    shares = share_cpus([SOCKET_0, SOCKET_0, SOCKET_1, SOCKET_1], ALL, CORES)
    assert shares[0] == (0, 1, 2, 3, 16, 17, 18, 19)
    assert shares[1] == (4, 5, 6, 7, 20, 21, 22, 23)
    assert set(shares[2]) | set(shares[3]) == SOCKET_1


def test_only_what_slurm_gave_is_used():
    assert share_cpus([SOCKET_0, SOCKET_1], parse_cpulist("6-9,22-25"), CORES) == [(6, 7, 22, 23), (8, 9, 24, 25)]


def test_a_worker_whose_neighbours_were_not_given_uses_what_was():
    assert share_cpus([SOCKET_1, SOCKET_1], {0, 1, 16, 17}, CORES) == [(0, 16), (1, 17)]
    assert share_cpus([(), ()], {0, 1, 2, 3}) == [(0, 1), (2, 3)]


def test_fewer_cores_than_workers_are_shared():
    assert share_cpus([SOCKET_0] * 3, {0, 1, 16}, CORES) == [(0, 1, 16)] * 3


@given(
    st.lists(st.sampled_from([SOCKET_0, SOCKET_1, frozenset()]), max_size=6), st.sets(st.integers(0, 31), min_size=1)
)
def test_everybody_may_run_somewhere_that_is_allowed(near, allowed):
    shares = share_cpus(near, allowed, CORES)
    assert len(shares) == len(near)
    assert all(share and set(share) <= allowed for share in shares)
    for socket in {cpus for cpus in near if cpus & allowed}:
        sizes = [len({cpu % 16 for cpu in share}) for share, cpus in zip(shares, near, strict=True) if cpus == socket]
        assert max(sizes) - min(sizes) <= 1
