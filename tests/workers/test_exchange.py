"""What the toy host's ranks do together breaks as a collective does: the error names group, operation, number, rank."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hpcrl.errors import PeerLostError
from hpcrl.wire.address import LOOPBACK_ONLY
from hpcrl.workers.exchange import Exchange

ONE = np.ones(2)


@pytest.fixture
def pair() -> tuple[Exchange, Exchange]:
    """Two ranks that have met."""
    first, second = (Exchange(rank, b"secret", LOOPBACK_ONLY) for rank in range(2))
    with ThreadPoolExecutor(2) as pool:
        for meeting in [pool.submit(rank.connect, [first.address, second.address]) for rank in (first, second)]:
            meeting.result(30)
    return first, second


def test_a_sum_with_a_peer_that_is_gone_tells_which_of_this_unit_broke_and_where(
    pair: tuple[Exchange, Exchange],
) -> None:
    first, second = pair
    first.begin_unit()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(second.sum, ONE, (0, 1))
        assert first.sum(ONE, (0, 1)).tolist() == theirs.result(30).tolist() == [2.0, 2.0]
    second.close()
    with pytest.raises(PeerLostError) as lost:
        first.sum(ONE, (0, 1))
    assert (lost.value.group, lost.value.operation, lost.value.number, lost.value.rank) == ((0, 1), "sum", 2, 0)
    first.close()


def test_a_peer_that_is_gone_before_they_meet_is_lost_too() -> None:
    gone = Exchange(0, b"secret", LOOPBACK_ONLY)
    address = gone.address
    gone.close()
    late = Exchange(1, b"secret", LOOPBACK_ONLY)
    with pytest.raises(PeerLostError, match=r"connecting, operation 1 of ranks \[0, 1\]"):
        late.connect([address, late.address])
    late.close()
