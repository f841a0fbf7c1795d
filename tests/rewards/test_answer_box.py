"""What a reward function's process leaves in shared memory is seen whole or not at all."""

import pytest

from hpcrl.rewards.function import AnswerBox

AHEAD = 1
OLDER, NEWER = 2, 4
"""Two numbers whose answers have one place."""
ANSWER = b'{"results":[2],"takes":{}}'
SEEN = 200
"""Bytes at the beginning of the memory, where that place is."""


def states(before: bytes, after: bytes) -> list[bytes]:
    """What somebody may see who looks while one becomes the other, byte by byte, from either end."""
    places = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    found = []
    for order in (places, places[::-1]):
        memory = bytearray(before)
        for at in order[:-1]:
            memory[at] = after[at]
            found.append(bytes(memory))
    return found


@pytest.mark.parametrize("older", [None, b'{"results":[1]}', b"x" * 40])
def test_an_answer_that_is_being_written_is_not_there_yet(older: bytes | None) -> None:
    box = AnswerBox(AHEAD)
    if older is not None:
        box.put(OLDER, older)
    before = box._memory[:SEEN]
    box.put(NEWER, ANSWER)
    assert box.get(NEWER) == ANSWER
    between = states(before, box._memory[:SEEN])
    assert len(between) > len(ANSWER)
    for state in between:
        box._memory[:SEEN] = state
        assert box.get(NEWER) is None
