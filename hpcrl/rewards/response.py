"""What is scored, and what a score is."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hpcrl.errors import DataError, HpcrlError
from hpcrl.foreign import plain

SHOWN = 200
"""Characters of a text that a message shows."""
ERROR_SHOWN = 2000
"""Characters that are kept of why a response was dropped."""


class Response(msgspec.Struct, frozen=True):
    """One response. `row` is the row of the data set that its prompt was made of."""

    prompt: str
    response: str
    row: Mapping[str, Any]
    finished: bool = True
    """Whether it ended by itself, not at the longest length."""
    tokens: tuple[int, ...] = ()
    """As they were sampled."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The whole chat, the response last; of what an environment answers."""
    model_scores: Mapping[str, float] = {}
    """Role → what its model says of it, of the models that are components of the reward; NaN where it says nothing."""

    @property
    def named(self) -> str:
        """The response in a message: row, prompt and text, by their beginnings."""
        return f"on row {self.row.get('id')!r}\nprompt: {shown(self.prompt)}\nresponse: {shown(self.response)}"


class Result(msgspec.Struct, frozen=True):
    """What one function says of one response."""

    score: float | None = None
    """None: it cannot be scored, or it has been dropped."""
    numbers: dict[str, float] = {}
    """To be reported."""
    places: tuple[tuple[int, float], ...] = ()
    """The shares of the score that belong to a place in the response: (character at which it ends, number)."""
    dropped: bool = False
    error: str = ""
    """Why it has been dropped."""
    message: str = ""
    """What an environment answers."""
    done: bool = False
    """Whether it has nothing more to answer."""


def prompt_messages(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The chat that a row of the data asks a model to answer."""
    asked = row["prompt"]
    return ({"role": "user", "content": asked},) if isinstance(asked, str) else tuple(asked)


def dropped(error: HpcrlError) -> Result:
    """Of a response that is not to be counted, for this error."""
    return Result(dropped=True, error=plain(str(error), ERROR_SHOWN))


def named_together(responses: Sequence[Response]) -> str:
    """Responses in a message, by the first of them."""
    several = f"on {len(responses)} responses, the first of them " if len(responses) > 1 else ""
    return several + responses[0].named


def shown(text: str) -> str:
    """The beginning of a text, in quotes."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def ground_truth(row: Mapping[str, Any]) -> Any:
    """What a row says is right: its `answer`, or in verl's rows `reward_model.ground_truth`; None where nothing."""
    if (answer := row.get("answer")) is not None:
        return answer
    judged = row.get("reward_model")
    return judged.get("ground_truth") if isinstance(judged, Mapping) else None


def expected_text(row: Mapping[str, Any], needed: str) -> str:
    """What is right, as a text. Raises DataError saying what was `needed`."""
    found = ground_truth(row)
    if not isinstance(found, str):
        raise DataError(f"row {row.get('id')!r} has the answer {found!r}; {needed}.")
    return found
