"""Lines with pairs, texts or chats, with a prompt or with one that both sides begin with; all become the first form.

As TRL reads them: what `chosen` and `rejected` have in common at the beginning is the prompt, where there is none, or
where it is a text and they are chats.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from hpcrl.data.rows.lines import Message, RowLine

Side = str | list[str | Message | list[Message]]
"""A text, the messages of a chat, or a list with one of these for each pair."""

LACKING = "chosen and rejected begin with nothing in common, which would be the prompt"


class WholePairsLine(RowLine, kw_only=True):
    """Pairs whose sides begin with their prompt. A margin says by how much chosen wins."""

    chosen: Side
    rejected: Side
    margin: float | list[float] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError, which the decoder tells with the line."""
        chosen, rejected = len(sides(self.chosen)), len(sides(self.rejected))
        if not chosen or chosen != rejected:
            raise ValueError(
                f"the numbers of answers, {chosen} in chosen and {rejected} in rejected, must be equal and at least 1"
            )
        if self.margin is not None and len(listed(self.margin)) != chosen:
            raise ValueError(f"margin has {len(listed(self.margin))} numbers for {chosen} pairs; each pair needs one")
        every = [*sides(self.chosen), *sides(self.rejected)]
        if len({isinstance(side, str) for side in every}) != 1:
            raise ValueError("of chosen and rejected some are texts and some are messages")
        found = self.normal(msgspec.to_builtins(self))
        if not found["prompt"]:
            raise ValueError("prompt is empty" if getattr(self, "prompt", None) == "" else LACKING)
        if [] in (*found["chosen"], *found["rejected"]):
            raise ValueError("of chosen and rejected one has no message behind the prompt")

    def reads_as(self) -> type:
        return str if isinstance(sides(self.chosen)[0], str) else list

    @staticmethod
    def normal(record: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the prompt, and of each pair, in lists, what comes after it."""
        chosen, rejected = sides(record["chosen"]), sides(record["rejected"])
        prompt, chats = record.get("prompt"), not isinstance(chosen[0], str)
        if prompt is None or (chats and isinstance(prompt, str)):
            prompt = _common([*chosen, *rejected])
            skipped = len(prompt)
        else:
            repeated = chats and all(side[: len(prompt)] == prompt for side in (*chosen, *rejected))
            skipped = len(prompt) if repeated else 0
        parts = {"chosen": [side[skipped:] for side in chosen], "rejected": [side[skipped:] for side in rejected]}
        return {**record, "prompt": prompt, **parts}


class PairsLine(WholePairsLine, kw_only=True):
    """A prompt with one pair or several."""

    prompt: str | list[Message]


def listed(field: Any) -> list[Any]:
    """What a field has for each pair."""
    return field if isinstance(field, list) else [field]


def sides(field: Any) -> list[Any]:
    """Of each pair the text, or the messages."""
    one_chat = isinstance(field, list) and field and isinstance(field[0], Message | Mapping)
    return [field] if one_chat else listed(field)


def _common(every: Sequence[Any]) -> Any:
    """The characters or messages that all begin with; at least one of each is left. A text's last blank belongs to
    what follows, where that begins with it in all of them."""
    shortest = min(map(len, every))
    alike = sum(1 for _ in takewhile(lambda i: all(side[i] == every[0][i] for side in every), range(shortest)))
    if alike == shortest:
        return every[0][: max(0, shortest - 1)]
    blank = alike > 0 and every[0][alike - 1] == " "
    return every[0][: alike - blank]
