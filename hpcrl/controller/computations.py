"""The computations that a script has asked for, until the worker that runs them is told to. For two threads."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrl.controller.user_code import told
from hpcrl.data.form import Form
from hpcrl.data.made_rows import in_words, misfit, own_forms, packed
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import HpcrlError, InternalError, UserCodeError

LONGEST_WAIT_S = 60.0
"""The script registers a computation before it asks for it: a request is never there first for long."""

Function = Callable[..., Any]


@dataclass(frozen=True)
class Computation:
    """A function of the script's, with its further arguments."""

    call: MFC
    function: Function
    arguments: Sequence[Any] = ()
    at: str = ""
    """Where the script asked for it."""


class Computations:
    """By step and call, as it was asked for: registered by the script's thread, run by the worker's."""

    def __init__(self, forms: Mapping[str, Form], longest_wait_s: float = LONGEST_WAIT_S) -> None:
        """`forms` are those of all keys of the graph."""
        self._forms = forms
        self._longest_wait_s = longest_wait_s
        self._known: dict[tuple[int, str], Computation] = {}
        self._changed = threading.Condition()
        self.running = ""
        """The call whose function is being executed."""
        self._thread = 0

    @property
    def here(self) -> str:
        """The call whose function this thread executes; "" where it executes none."""
        return self.running if threading.get_ident() == self._thread else ""

    def form(self, key: str) -> Form | None:
        """Of the rows of a key of the graph."""
        return self._forms.get(key)

    def register(self, step: int, call: str, computation: Computation) -> None:
        """Before it is asked for."""
        with self._changed:
            self._known[step, call] = computation
            self._changed.notify_all()

    def forget(self, step: int, call: str) -> None:
        """It is executed; any other call may be named too."""
        with self._changed:
            self._known.pop((step, call), None)

    def take(self, step: int, call: str) -> Computation:
        """Waits for it."""
        with self._changed:
            if not self._changed.wait_for(lambda: (step, call) in self._known, self._longest_wait_s):
                raise InternalError(
                    f"step {step} is to compute {call}; its script has not asked for it in {self._longest_wait_s:g} s"
                )
            return self._known[step, call]

    def run(self, step: int, call: str, ids: Sequence[str], rows: Mapping[str, Sequence[np.ndarray]]) -> SequenceSample:
        """The rows that a computation makes, under the call's own keys, as `rows` are.

        Raises:
            UserCodeError: the function raised, or gave something else than the declared rows.
        """
        it = self.take(step, call)
        where = f"{call} ({it.at})" if it.at else call
        self.running, self._thread = call, threading.get_ident()
        try:
            made = it.function({key: [*of_key] for key, of_key in rows.items()}, *it.arguments)
        except HpcrlError:
            raise
        except (Exception, SystemExit) as error:
            raise UserCodeError(f"{where} failed in step {step}.\n{told(error)}") from error
        finally:
            self.running = ""
        forms = own_forms(it.call, self._forms)
        if wrong := misfit(forms, len(ids), made):
            raise UserCodeError(
                f"{where}, in step {step}, {wrong}; it has to give a dict of lists, a row for each of its {len(ids)} "
                f"samples, of {in_words(forms)}."
            )
        return packed(ids, made, forms)
