"""`run.state` from turn to turn: read anew at each turn's end, so that a turn finds the same after a kill.

Knows no turns: it is told when the loop begins and when a turn ends.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.controller.json_values import refuse_lost, state_text, with_defaults
from hpcrl.controller.user_code import misuse


@dataclass(frozen=True)
class _Held:
    """A list or dict that was part of the state, and that the script may still have; `text` is what it is as JSON."""

    key: str
    value: Any
    text: str


class RunState:
    """Of one run."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.defaults = "{}"
        """What the script sets of it above its loop, as JSON."""
        self._read: dict[str, Any] = {}
        """What the turn began with."""
        self._above: list[_Held] = []
        """Of what is set above the loop."""
        self._before: list[_Held] = []
        """Of the turn before."""

    def begin(self, recorded: str | None) -> str:
        """The loop begins with what was recorded, or else with what is set above it; the latter, as JSON."""
        self.defaults = state_text(self.values)
        self._above = [*_held(self.values)]
        self._take(recorded or self.defaults)
        return self.defaults

    def end(self) -> str:
        """A turn ends: the state as JSON. Raises UserCodeError where it cannot be kept, or lacks what was changed."""
        text = state_text(self.values)
        refuse_lost(self.values, self.defaults)
        self._refuse_changed((*self._above, *self._before))
        self._above = [_Held(it.key, it.value, _text(it.value)) for it in self._above]
        self._before = [*_held(self.values)]
        self._take(text)
        return text

    def _take(self, text: str) -> None:
        """What was recorded takes the place of what is there."""
        self._read = with_defaults(text, self.defaults)
        self.values.clear()
        self.values.update(self._read)

    def _refuse_changed(self, held: Iterable[_Held]) -> None:
        """Raises UserCodeError where a turn has changed what is no longer part of the state, and assigned nothing."""
        for it in held:
            now = self.values.get(it.key)
            if now is self._read.get(it.key) and _text(it.value) not in (it.text, _text(now)):
                kind = type(it.value).__name__
                raise misuse(
                    f"the step has changed a {kind} that was taken from run.state[{it.key!r}] before it began: "
                    "run.state is read anew for each step, and has another one now.",
                    f"Change run.state[{it.key!r}] itself, in the loop, or assign to it.",
                )


def _held(state: Mapping[str, Any]) -> Iterator[_Held]:
    for key, value in state.items():
        if isinstance(value, list | dict):
            yield _Held(key, value, _text(value))


def _text(value: Any) -> str:
    """As JSON; "" of what JSON cannot have, as none of the state was."""
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return ""
