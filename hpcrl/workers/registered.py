"""How a worker makes a call: by the role's method, or, where that is registered, by what `register` says of it."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from hpcrl.data.form import Form
from hpcrl.data.made_rows import in_words, misfit, own_forms, packed
from hpcrl.data.samples import SequenceSample
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import HpcrlError, UserCodeError
from hpcrl.recipes.registered import Registered, registered
from hpcrl.stacks import Frame
from hpcrl.workers.host import Outcome, Work

MOST_VALUE = 1 << 16
"""Bytes of what a method of JSON returns on a worker: its line in the journal has them."""
LEAVE = "Leave them as they are, or register the method with changes=True."


def perform(
    role: Any, work: Work, call: MFC, forms: Mapping[str, Form], parameters: Callable[[], bytes] | None = None
) -> Outcome:
    """The outcome of a role's method; `forms` are those of the graph's keys. `parameters` digests those of the role
    here, where they are to be compared.

    Raises:
        UserCodeError: a registered method raised, gave something else than it declares, changed what its role
            remembers, or is hidden by an attribute.
    """
    name = call.method or call.kind
    method = getattr(role, name)
    it = registered(method)
    if it is None and registered(getattr(type(role), name, None)) is not None:
        raise UserCodeError(
            f"{call.role}.{name} is a registered method of {type(role).__name__}, which has set an attribute of "
            "that name.",
            "Give the method another name.",
        )
    if it is None:
        return cast(Outcome, method(work, call))
    if it.changes:
        return cast(Outcome, _called(method, work, call, (work, *work.arguments)))
    before, had = _memory(role), parameters() if parameters is not None else b""
    outcome = _rows(method, work, call, forms) if it.takes_rows else _values(method, it, work, call)
    if _memory(role) != before:
        raise UserCodeError(
            f"{call.role}.{call.method} has changed what state() returns, and is registered with changes=False.",
            LEAVE,
        )
    if parameters is not None and parameters() != had:
        raise UserCodeError(
            f"{call.role}.{call.method} has changed parameters of {call.role}, and is registered with changes=False.",
            LEAVE,
        )
    return outcome


def _called(method: Any, work: Work, call: MFC, given: Sequence[Any]) -> Any:
    """What it returns. An error that comes out of the user's own lines is theirs; one of a library may be a lost peer,
    or memory that ran out, and stays what it is."""
    try:
        return method(*given)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [it for it in frames if Frame(it.filename, it.lineno or 0, "").is_users]
        if isinstance(error, HpcrlError) or not own or own[-1] is not frames[-1]:
            raise
        told = "".join((*traceback.format_list(own), *traceback.format_exception_only(error))).rstrip()
        raise UserCodeError(f"{call.role}.{call.method} failed in step {work.step}.\n{told}") from error


def _memory(role: Any) -> bytes:
    """What its algorithm remembers."""
    state = getattr(role, "state", None)
    return b"" if state is None else msgspec.json.encode(state(), order="sorted")


def _rows(method: Any, work: Work, call: MFC, forms: Mapping[str, Form]) -> Outcome:
    own = own_forms(call, forms)
    if not work.batch.ids:  # it only computes in step with others
        _called(method, work, call, ({key: [] for key in work.batch.keys}, *work.arguments))
        return Outcome(SequenceSample.empty(own))
    rows = {key: work.batch.rows(key) for key in work.batch.keys}
    made = _called(method, work, call, (rows, *work.arguments))
    if isinstance(made, Mapping):
        made = {key: _exact(rows, own.get(key)) for key, rows in made.items()}
    if wrong := misfit(own, len(work.batch.ids), made):
        raise UserCodeError(
            f"{call.role}.{call.method}, in step {work.step}, {wrong}; it has to give a dict of lists, a row for each "
            f"of its {len(work.batch.ids)} samples, of {in_words(own)}."
        )
    return Outcome(packed(work.batch.ids, made, own))


def _exact(rows: Any, form: Form | None) -> Any:
    """Numbers that are declared as float32 are float64 in a model that computes so."""
    if form is None or form.dtype != "float64" or not isinstance(rows, list):
        return rows
    return [row.astype(np.float64) if isinstance(row, np.ndarray) and row.dtype.kind == "f" else row for row in rows]


def _values(method: Any, it: Registered, work: Work, call: MFC) -> Outcome:
    """A value for each of the numbers that the samples of such a call are."""
    made = list[str]()
    for number in map(int, work.batch.ids or (work.part,)):
        given = [each[number] for each in work.arguments] if it.takes_items else work.arguments
        value = _called(method, work, call, given)
        try:
            text = msgspec.json.encode(value)
            plain = msgspec.json.decode(text) == value
        except (TypeError, ValueError, msgspec.MsgspecError):
            plain = False
        wrong = "" if plain else f"{value!r:.200}, which JSON would not give back as it is"
        if plain and len(text) > MOST_VALUE:
            wrong = f"{len(text)} bytes as JSON, and {MOST_VALUE} are the most"
        if wrong:
            raise UserCodeError(
                f"{call.role}.{call.method} returned {wrong}.",
                "Return texts, finite numbers, true, false, null, lists and dicts; rows go by a mode of samples.",
            )
        made.append(text.decode())
    return Outcome(values=tuple(made) if work.batch.ids else ())
