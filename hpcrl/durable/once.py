"""What only journals of runs with a script have: what it has done outside of the run, what methods of JSON have
returned, and how its turns end."""

import msgspec

MOST_STATE = 1 << 20
"""Bytes of JSON that may live from turn to turn."""


class Once(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """The script has done something, as its `number`-th ask in this step; `at` is where, `result` what came of it.

    `call` is the name of its function, with `_2` behind it the second time in a step. `arguments` and `result` are
    JSON. An event of the journal.
    """

    step: int
    number: int
    call: str
    arguments: str
    result: str
    settings: int
    at: str = ""


class Returned(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """One part of a call of a method of JSON is finished: what it has returned for each of the part's samples, as JSON.

    It is all that the part leaves; `settings` and `version` are as in `Done`. An event of the journal.
    """

    step: int
    call: str
    part: int
    values: tuple[str, ...]
    settings: int = 0
    version: int = 0


class SetAside(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """What open steps from `step` on have recorded counts no more: the script was changed, and asks for something else.

    None of them has changed a role. An event of the journal.
    """

    step: int


class Turn(msgspec.Struct, frozen=True):
    """How a script's turn ended: what lives from step to step, as JSON, and how many changes each role has had. `left`:
    the script left its loop in it, or had left it in one before, beside which it was prepared."""

    state: str
    logged: dict[str, float]
    calls: int
    versions: dict[str, int]
    settings: int
    left: bool = False
