"""Whose turn it is to do a chore, and who does it again. Pure: agents are a table."""

import pytest
from support.crew import Table

from hpcrl.durable.files import DamagedFileError, FileRef
from hpcrl.errors import ExitCode
from hpcrl.master.chores import TRIES, ChoreError, Turns
from hpcrl.wire.chores import ChoreDone, ChoreFailed, RemoveParts

MADE = FileRef("made", 1, 1)


def turns_of(table: Table, *steps: int) -> Turns:
    turns = Turns(table)
    for step in steps:
        turns.add(RemoveParts(0, step))
    turns.give()
    return turns


def failed(step: int, elsewhere: bool = True, damage: str = "") -> ChoreFailed:
    return ChoreFailed(0, step, "no luck", int(ExitCode.DATA), damage, elsewhere)


def test_nodes_do_chores_in_turn_and_one_at_a_time() -> None:
    table = Table(0, 2, 5)
    turns = turns_of(table, 1, 2, 3, 4)
    assert table.told == [(0, 1), (2, 2), (5, 3)]
    assert turns.heard(b"agent-2", ChoreDone(0, 2, MADE)) == (RemoveParts(0, 2), ChoreDone(0, 2, MADE))
    turns.give()
    assert table.told[3:] == [(2, 4)]
    for agent, step in ((b"agent-0", 1), (b"agent-5", 3), (b"agent-2", 4)):
        assert not turns.idle and turns.heard(agent, ChoreDone(0, step)) is not None
    assert turns.idle
    turns.add(RemoveParts(0, 5))
    turns.give()
    assert table.told[4:] == [(5, 5)], "whose turn is next, not who was free first"


def test_what_an_agent_had_that_is_gone_another_does_and_the_late_answer_is_not_heard() -> None:
    table = Table(0, 1)
    turns = turns_of(table, 1)
    del table.agents[0]
    turns.give()
    assert table.told == [(0, 1), (1, 1)]
    assert turns.heard(b"agent-0", ChoreDone(0, 1)) is None and not turns.idle
    table.agents[1] = b"agent-1 again"
    turns.give()
    assert table.told[2:] == [(1, 1)], "another agent of the node is another agent"
    assert turns.heard(b"agent-1 again", ChoreDone(0, 2)) is None, "not what it was told"
    assert turns.heard(b"agent-1 again", ChoreDone(0, 1)) is not None and turns.idle


def test_without_anybody_a_chore_waits() -> None:
    table = Table()
    turns = turns_of(table, 1)
    assert table.told == [] and not turns.idle
    table.agents[3] = b"agent-3"
    turns.give()
    assert table.told == [(3, 1)]


def test_a_chore_that_fails_is_tried_elsewhere_and_not_for_ever() -> None:
    table = Table(0, 1)
    turns = turns_of(table, 1)
    for _ in range(TRIES - 1):
        node, step = table.told[-1]
        assert turns.heard(table.agents[node], failed(step)) is None
        turns.give()
    assert [node for node, _ in table.told] == [0, 1, 0]
    with pytest.raises(ChoreError, match="housekeeping of step 1 failed on node 0: no luck") as raised:
        turns.heard(b"agent-0", failed(1))
    assert raised.value.exit_code == ExitCode.DATA


@pytest.mark.parametrize(
    ("told", "error"), [(failed(1, elsewhere=False), ChoreError), (failed(1, damage="x is missing"), DamagedFileError)]
)
def test_what_no_other_node_would_cure_ends_the_attempt_at_once(told: ChoreFailed, error: type[Exception]) -> None:
    turns = turns_of(Table(0, 1), 1)
    with pytest.raises(error):
        turns.heard(b"agent-0", told)
