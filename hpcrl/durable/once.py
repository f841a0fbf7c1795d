"""The line of what a run's script has done outside of its run: what came of it, so that it is done no more."""

import msgspec


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
