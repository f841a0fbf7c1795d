"""Which call of the recipe a script means by a group and a method. Pure description; asks for nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrl.config.environment import ENVIRONMENT
from hpcrl.controller.data_proto import in_script
from hpcrl.controller.user_code import listed, misuse
from hpcrl.data.rows.kind import EVAL_PREFIX
from hpcrl.dataflow.graph import MFC, Dataset
from hpcrl.families.config import HeadKind
from hpcrl.recipes.algorithm import SCRIPT, Algorithm
from hpcrl.recipes.environment import is_turn
from hpcrl.recipes.registered import Registered, call_of, registered_methods

INFERENCE: Mapping[HeadKind | None, str] = {"vocabulary": "logprobs", "value": "values"}
"""What an inference is usually called, by what the role's model ends with; else `score`."""
USUAL = {"generate": ("generate",), "train_step": ("update",), "evaluate": ("evaluate",), "blend": ("blend",)}


def registered_of(algorithm: Algorithm, calls: Iterable[MFC]) -> dict[str, Registered]:
    """Call → its method, of the calls that are registered methods."""
    methods = {
        (role, it.method): it for role, kind in algorithm.roles.items() for it in registered_methods(kind.methods)
    }
    return {call.name: it for call in calls if (it := methods.get((call.role, call.method))) is not None}


def names_of(it: Registered) -> tuple[str, ...]:
    """How a group calls a registered method: one that changes the role is its train_step, whatever it is called."""
    usual = USUAL["train_step"] if it.changes else ()
    return tuple(dict.fromkeys((it.method, *usual)))


@dataclass(frozen=True)
class DeclaredCalls:
    """The calls that a script may make."""

    calls: Sequence[MFC]
    heads: Mapping[str, HeadKind | None] = field(default_factory=dict)
    """Role → what its model ends with."""
    registered: Mapping[str, Registered] = field(default_factory=dict)
    """Call → its method, of those that are registered."""
    segments: Sequence[MFC] = ()
    """Calls that are made before one of them, which draws what they leave of its responses."""
    statistics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Call → those that it may have."""

    @classmethod
    def of(cls, algorithm: Algorithm, calls: Sequence[MFC], experiment: Any) -> "DeclaredCalls":
        """Of a plan."""
        heads = {role: kind.head for role, kind in algorithm.roles.items()}
        segments = [call for call in calls if call.segment is not None and not call.segment.last]
        declared = [call for call in calls if call not in segments]
        statistics = algorithm.reported(experiment)
        return cls(declared, heads, registered_of(algorithm, declared), segments, statistics)

    def segments_before(self, call: MFC) -> Iterator[MFC]:
        """The calls that draw the first segments of what it draws, in their order."""
        return (each for each in self.segments if each.segment is not None and each.segment.of == call.name)

    @property
    def roles(self) -> tuple[str, ...]:
        """Those that groups are of."""
        return tuple(dict.fromkeys(call.role for call in self.calls if call.role != SCRIPT))

    def methods(self, call: MFC) -> tuple[str, ...]:
        """By which methods of its group a call is meant."""
        if call.name in self.registered:
            return (call.name, *names_of(self.registered[call.name]))
        if call.kind == "inference":
            usual: tuple[str, ...] = (INFERENCE.get(self.heads.get(call.role), "score"), "inference")
        else:
            usual = USUAL[call.kind]
        return (call.name, *((call.method,) if call.method else ()), *usual)

    def knows(self, role: str, method: str) -> bool:
        """Whether a group has such a method."""
        return any(method in self.methods(call) for call in self.calls if call.role == role)

    def method(self, role: str, name: str) -> Registered | None:
        """The registered method of this name."""
        found = (
            self.registered[call.name] for call in self.calls if call.name in self.registered and call.role == role
        )
        return next((it for it in found if name in (*names_of(it), call_of(role, it.method))), None)

    def of_role(self, role: str) -> str:
        """Its calls in words, with the methods that mean them."""
        return "; ".join(
            f"{call.name} ({'/'.join(self.methods(call)[1:])}, {call.dataset})"
            for call in self.calls
            if call.role == role
        )

    def meant(self, role: str, method: str, dataset: Dataset, name: str | None) -> MFC:
        """The one call: by its own name, by its method, or else by what its kind is usually called, where one without a
        method comes before those that have one. Raises UserCodeError where there is none, or several."""
        found = [call for call in self.calls if call.role == role and method in self.methods(call)]
        fitting = [call for call in found if call.dataset == dataset and name in (None, call.name)]
        nearer = (
            [call for call in fitting if call.name == method],
            [call for call in fitting if call.method == method],
            [call for call in fitting if not call.method],
        )
        fitting = next((calls for calls in nearer if calls), fitting)
        if len(fitting) == 1:
            return fitting[0]
        asked = f"{role}.{method}" + (f"(name={name!r})" if name else "")
        there = f"The recipe has of {role}: {self.of_role(role) or 'no call'}."
        if not fitting:
            by = ", by on_eval(…) of hpcrl.recipes.algorithm" if dataset == "eval" else ""
            nothing = f"{asked} means no call on a batch of the {dataset} data set. {there}"
            raise misuse(nothing, f"Declare it there{by}.")
        several = f"{asked} means several calls: {listed(call.name for call in fitting)}. {there}"
        if any(call.role == ENVIRONMENT or is_turn(call) for call in fitting):
            raise misuse(
                several,
                "Ask for all turns by respond(actor, environment, batch, e), from hpcrl.controller.dialogue.",
            )
        raise misuse(several, f"Say which: name={fitting[0].name!r}.")

    def computation(self, function: str, dataset: Dataset) -> MFC:
        """The computation of this name. Raises UserCodeError where there is none."""
        computed = [call for call in self.calls if call.role == SCRIPT]
        names = (function, EVAL_PREFIX + function) if dataset == "eval" else (function,)
        for call in computed:
            if call.dataset == dataset and call.name in names:
                return call
        there = listed(f"{call.name} ({call.dataset})" for call in computed)
        wanted = f"computed({names[-1]!r}, inputs, outputs)"
        wanted = wanted if dataset == "train" else f"on_eval({wanted})"
        raise misuse(
            f"run.compute: the recipe declares no computation {function!r} on a batch of the {dataset} data set; it "
            f"declares {there}.",
            f"Add {wanted} to the recipe, or say which is meant: name=….",
        )

    def making(self, keys: Iterable[str]) -> str:
        """What a script asks for to have these keys: `actor.logprobs(batch)`; … where no single call makes them."""
        made = {key: call for call in self.calls for key in call.outputs}
        calls = [made.get(key) for key in keys]
        if any(call is None or call.role == SCRIPT or self._is_one_of_several(call) for call in calls):
            return "…"
        asked = (f"{call.role}.{self.methods(call)[1]}(batch)" for call in calls if call is not None)
        return ", ".join(dict.fromkeys(asked))

    def _is_one_of_several(self, call: MFC) -> bool:
        """Whether its method means others of its data set too."""
        method = self.methods(call)[1]
        return any(
            other is not call and other.role == call.role and other.dataset == call.dataset
            for other in self.calls
            if method in self.methods(other)
        )

    def makers(self, keys: Iterable[str]) -> str:
        """Who makes keys of the graph, in words."""
        made = {key: call for call in self.calls for key in call.outputs}
        return "; ".join(
            f"{in_script(key, made[key].dataset)} is made by {made[key].name} ({made[key].role})"
            for key in keys
            if key in made
        )
