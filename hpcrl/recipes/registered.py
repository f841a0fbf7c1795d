"""Methods of a role's class that a script calls by their names, and how each goes to the role's workers.

`register` only marks a method. A class is marked once it is imported, which no plan must need torch for: a role's class
that needs it derives from the marked one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from hpcrl.data.form import BYTES, Form
from hpcrl.dataflow.dispatched import Dispatched, GoesTo
from hpcrl.dataflow.graph import MFC

F = TypeVar("F", bound=Callable[..., Any])

DTYPES = ("bool", "uint8", "int32", "int64", "float32", "float64")
"""Of the rows that a method makes."""
TAKEN = ("info", "layout", "ranks", "role", "world_size")
"""What a worker group has of its own."""
MARK = "_hpcrl_registered"


class Dispatch(Enum):
    """Who gets what of a call. The names are verl's."""

    ONE_TO_ALL = "the same arguments to every worker"
    ALL_TO_ALL = "of each argument, a list, item i to worker i"
    DP_COMPUTE = "of each argument, a list, item i to the workers of part i"
    DP_COMPUTE_PROTO = "its samples to the workers of each part"
    MEGATRON_COMPUTE = "as DP_COMPUTE"
    MEGATRON_COMPUTE_PROTO = "as DP_COMPUTE_PROTO"
    PP_AS_DP = "as DP_COMPUTE, at a place without pipeline stages"
    PP_AS_DP_PROTO = "as DP_COMPUTE_PROTO, at a place without pipeline stages"


class Execute(Enum):
    """Which workers execute a call."""

    ALL = "all of the role"
    RANK_ZERO = "the head of the first part alone"


@dataclass(frozen=True)
class Custom:
    """A way of your own for samples: both functions see batches, the names of rows, and no row."""

    split: Callable[[Any, int], Sequence[Any]]
    """(batch, number of parts) → a batch for each part. A sample is in one of them at most."""
    collect: Callable[[list[Any]], Any]
    """The batches of what the parts have made → what the call gives."""


@dataclass(frozen=True)
class Registered:
    """What `register` says of a method."""

    method: str
    dispatch: Dispatch | Custom
    execute: Execute = Execute.ALL
    inputs: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False
    rehearsed: Any = None

    @property
    def takes_rows(self) -> bool:
        """Whether it works on samples; else on JSON, and gives JSON."""
        return isinstance(self.dispatch, Custom) or self.dispatch.name.endswith("_PROTO")

    @property
    def takes_items(self) -> bool:
        """Whether each argument is a list with an item for each part or worker."""
        return not self.takes_rows and self.dispatch is not Dispatch.ONE_TO_ALL and self.execute is Execute.ALL

    @property
    def is_single(self) -> bool:
        """Whether it gives one value, and no list of them."""
        return self.execute is Execute.RANK_ZERO

    @property
    def goes_to(self) -> GoesTo:
        if self.execute is Execute.RANK_ZERO:
            return "first"
        return "ranks" if self.dispatch in (Dispatch.ONE_TO_ALL, Dispatch.ALL_TO_ALL) else "parts"

    @property
    def without_stages(self) -> bool:
        """Whether it is made where its role has no pipeline stages."""
        return self.dispatch in (Dispatch.PP_AS_DP, Dispatch.PP_AS_DP_PROTO)


def register(
    dispatch: Dispatch | Custom,
    execute: Execute = Execute.ALL,
    *,
    inputs: Sequence[str] = (),
    outputs: Mapping[str, str] | None = None,
    changes: bool = False,
    rehearsed: Any = None,
) -> Callable[[F], F]:
    """Mark a method of a role as one that a script may call.

    On samples, a method is `(self, rows, *arguments)`: `rows` has a list of rows for each key of `inputs`, and so has
    what it returns for each of `outputs` (key → type of its numbers). Any other method is `(self, *arguments)`, and
    arguments and what it returns are JSON; in a rehearsal it returns `rehearsed`.

    A method that `changes` its role is the role's train_step: `(self, work, *arguments) → Outcome`, as those of
    `hpcrl.algos`. Its record is written down and followed in a replay. Any other has to leave the role as it is.

    Raises:
        ValueError: the parts of this do not go together.
    """

    def mark(method: F) -> F:
        it = Registered(
            method.__name__, dispatch, execute, tuple(inputs), dict(outputs or {}), bool(changes), rehearsed
        )
        if wrong := _no_mode(dispatch, execute) or _wrong(it):
            raise ValueError(f"@register of {method.__qualname__}: {wrong}")
        setattr(method, MARK, it)
        return method

    return mark


def _no_mode(dispatch: Any, execute: Any) -> str:
    """What users write where a mode belongs; "" where both are such."""
    if not isinstance(dispatch, Dispatch | Custom):
        modes = ", ".join(mode.name for mode in Dispatch)
        return f"the mode is {dispatch!r}; it has to be one of Dispatch ({modes}), or Custom(split, collect)"
    return (
        "" if isinstance(execute, Execute) else f"execute is {execute!r}; it has to be one of Execute: ALL, RANK_ZERO"
    )


def _wrong(it: Registered) -> str:
    """What of it does not go together, and what would; "" where all does."""
    if it.method in TAKEN or it.method.startswith("_"):
        return f"worker groups have a {it.method} of their own, or hide it: give it another name"
    if odd := [kind for kind in it.outputs.values() if kind not in DTYPES]:
        return f"outputs has the type {odd[0]!r}; there are {', '.join(DTYPES)}"
    if not it.takes_rows and (it.inputs or it.outputs or it.changes):
        return "a method of JSON has neither inputs nor outputs, and changes nothing: take a mode that ends with _PROTO"
    if it.takes_rows and not it.inputs:
        return "it works on samples, but inputs is empty: name the keys that it reads"
    if it.changes and (it.outputs or it.execute is not Execute.ALL or isinstance(it.dispatch, Custom)):
        return "a method that changes its role has no outputs, and goes to all parts: make rows in another method"
    if it.takes_rows and not it.changes and not it.outputs:
        return "it makes rows, but outputs is empty: name their keys and types, as in {'entropy': 'float32'}"
    return ""


def registered(function: object) -> Registered | None:
    """What is marked on a function or method, if anything is."""
    found: Registered | None = getattr(function, MARK, None)
    return found


def registered_methods(kind: type | None) -> Iterator[Registered]:
    """Of a class, in the order of their names."""
    for name in dir(kind) if kind is not None else ():
        if (it := registered(getattr(kind, name))) is not None:
            yield it


def call_of(role: str, method: str) -> str:
    """The name of a registered method's call."""
    return f"{role}_{method}"


def registered_calls(role: str, kind: type | None) -> Iterator[MFC]:
    """The calls of a role that its registered methods are."""
    for it in registered_methods(kind):
        name = call_of(role, it.method)
        yield MFC(
            name,
            role,
            "train_step" if it.changes else "inference",
            it.inputs,
            tuple(it.outputs) if it.takes_rows else (name,),
            method=it.method,
            dispatch=Dispatched(it.goes_to, values=not it.takes_rows, without_stages=it.without_stages),
        )


def registered_forms(role: str, kind: type | None) -> dict[str, Form]:
    """Key → the form of the rows that registered methods make; a value is a row of JSON under its call's name."""
    found: dict[str, Form] = {}
    for it in registered_methods(kind):
        found |= {key: Form(dtype) for key, dtype in it.outputs.items()}
        if not it.takes_rows:
            found[call_of(role, it.method)] = BYTES
    return found
