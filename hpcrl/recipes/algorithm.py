"""What an algorithm declares in its file: experiment, graph, roles, rows, batch, checks, notices, statistics.

One file in this folder is one algorithm, found by its name; a user's own is found as `file.py:NAME`. Nothing here
knows torch: roles and host are named by import path, and imported by workers alone.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from hpcrl.config.environment import ENVIRONMENT
from hpcrl.config.experiment import Catalogue, ExperimentConfig
from hpcrl.config.fields import Setting, is_storable, sections_of, settings
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.judge import ANSWERED, JudgeConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.batch import Batch
from hpcrl.data.choice import Choice, FirstToEnd
from hpcrl.data.form import Form
from hpcrl.data.rows.kind import EVAL_PREFIX, RowKind, evaluates
from hpcrl.dataflow.graph import MFC, Graph, build_graph
from hpcrl.dataflow.renamed import under_other_keys
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.families.config import HeadKind
from hpcrl.plugins import Room, find, names
from hpcrl.recipes.environment import ANSWERED as TALKED
from hpcrl.recipes.environment import GENERATED, form_between, is_turn
from hpcrl.recipes.in_flight import STATISTICS as FLOWN
from hpcrl.recipes.registered import registered_calls, registered_forms
from hpcrl.recipes.segments import segmented

E = TypeVar("E", bound=ExperimentConfig)


JUDGE = "judge"
"""The method of a reward's call that scores the responses of an evaluation, of which a prompt may have several."""

SCRIPT = "script"
"""The role of an algorithm's script: of the calls that it computes itself, in a worker of its own."""
SCRIPT_HOST = "hpcrl.controller.host:ScriptHost"


def computed(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> MFC:
    """A call of a scripted recipe that the script computes itself, by a function of this name (`Run.compute`)."""
    return MFC(name, SCRIPT, "inference", tuple(inputs), tuple(outputs))


@dataclass(frozen=True)
class RoleKind:
    """What a role is in a worker. What it must be able to do follows from its calls."""

    maker: str
    """`module:NAME` of what makes it there; in a user's file, f"{__name__}:NAME"."""
    head: HeadKind | None = None
    """What its model ends with; None where it has none."""
    host: str | None = None
    """The class that holds it, as module:Class, on the CPU workers of its own that its section, a CPUPlacementConfig,
    may ask for; on model workers the algorithm's host does. None: it has no workers of its own."""
    axes: tuple[str, ...] = ("dp",)
    """The axes over which its host splits it, where it has no model, whose backend says that."""
    decay: Callable[[Any, int], float] | None = None
    """(experiment, step) → which share of its own parameters a blend leaves it: 1 where it stays as it is, 0 where it
    becomes the other. A role that a call blends needs it."""
    methods: type | None = None
    """The class whose methods marked by `register` a script may call: the role's own, or one that it derives from and
    that can be imported without torch."""


@dataclass(frozen=True)
class DropLimit:
    """A share of a step's samples, and the setting that gives it."""

    setting: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Algorithm(Generic[E]):
    """All that hpcrl has to know of an algorithm."""

    experiment: type[E]
    """The root dataclass of its configuration: sections, roles and hyper-parameters."""
    recipe: Callable[[E], tuple[MFC, ...]]
    """The calls of a step, and those of an evaluation by `on_eval`. Where there is a script, those that it may make."""
    roles: Mapping[str, RoleKind]
    """Every role of the recipe. The experiment has a section of the same name, which says where it is placed."""
    rows: RowKind[E]
    """What samples begin with."""
    made: Mapping[str, Form]
    """Key that a call makes → the form of its rows; one that an evaluation makes is named as in training. Where the
    role's model computes in fp64, float32 numbers are float64."""
    batch: Callable[[E], Batch]
    """How steps are cut, and how many updates a run has."""
    choice: Callable[[E], Choice | FirstToEnd | None] = lambda experiment: None
    """By which of a step's recorded numbers it chooses the rows that it trains on; None where it trains on all."""
    check: Callable[[E], Iterable[Problem]] = lambda experiment: ()
    """What is wrong with its own settings."""
    notices: Callable[[E], Iterable[str]] = lambda experiment: ()
    """What is allowed, as in a short trial of a long recipe, but hardly meant for a whole run."""
    without_effect: Callable[[E], Mapping[str, str]] = lambda experiment: {}
    """Setting → why changing it does nothing to a run that has trained."""
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Call → the statistics that it reports."""
    uncomputed: Callable[[E], Mapping[str, str]] = lambda experiment: {}
    """Metric, as CALL/STATISTIC → the setting, with its value, by which nothing computes it."""
    script: Callable[[Any, E], None] | None = None
    """(`hpcrl.controller.run.Run`, experiment): the loop over steps, which asks for calls of the recipe in any order,
    as often as it likes, or not at all. None: each step makes every call once, as the graph says."""
    host: str = "hpcrl.algos.host:TorchHost"
    """The class that holds its roles on model workers, as module:Class."""
    export: str = "hpcrl.placement.exporting:HuggingFaceExport"
    """The class that assembles the exports of its roles, as module:Class."""

    def __post_init__(self) -> None:
        if self.script is not None:
            object.__setattr__(self, "roles", {**self.roles, SCRIPT: RoleKind(SCRIPT_HOST, host=SCRIPT_HOST)})

    def evaluates(self, experiment: E) -> bool:
        """Whether some step may evaluate."""
        return evaluates(experiment, self.rows)

    def calls(self, experiment: E) -> tuple[MFC, ...]:
        """The calls that are made: those of an evaluation only where there may be one."""
        every = self.evaluates(experiment)
        return tuple(call for call in self.declared(experiment) if every or call.dataset == "train")

    def executed(self, experiment: E) -> tuple[MFC, ...]:
        """The same as they are in a plan: a call that draws responses by segments is several."""
        return segmented(self.calls(experiment), experiment)

    def declared(self, experiment: E) -> tuple[MFC, ...]:
        """The recipe's calls, and the registered methods of the roles that it calls, or that have no other calls."""
        recipe = self.recipe(experiment)
        made = {*eval_keys(self.rows.keys), *(key for call in recipe if call.dataset == "eval" for key in call.outputs)}
        methods = [method for role, kind in self.roles.items() for method in registered_calls(role, kind.methods)]
        evaluates = (
            on_eval(msgspec.structs.replace(call, name=EVAL_PREFIX + call.name))
            for call in methods
            if not call.changes and call.inputs and made.issuperset(eval_keys(call.inputs))
        )
        return (*recipe, *methods, *evaluates)

    def called(self, experiment: E) -> frozenset[str]:
        """The roles that some call is of."""
        return frozenset(call.role for call in self.calls(experiment))

    def reported(self, experiment: E) -> Mapping[str, tuple[str, ...]]:
        """Call → the statistics that it reports under these settings, those of the reward's components, of a judge and
        of pass@k with them."""
        rewards, drawn = sections_of(experiment, RewardConfig), sections_of(experiment, GenerationConfig)
        asked = sections_of(experiment, JudgeConfig)
        chances = [name for generation in drawn.values() for name in generation.evaluation.named_chances]
        uncomputed = self.uncomputed(experiment)
        found = {
            call.name: (
                *self.metrics.get(call.name, GENERATED if is_turn(call) else ()),
                *(TALKED if call.role == ENVIRONMENT else ()),
                *(FLOWN if "versions" in call.outputs else ()),
                *(rewards[call.role].named_scores if call.role in rewards else ()),
                *(ANSWERED if call.role in asked else ()),
                *(chances if call.method == JUDGE else ()),
            )
            for call in self.calls(experiment)
        }
        return {
            call: tuple(name for name in names if f"{call}/{name}" not in uncomputed) for call, names in found.items()
        }

    def drop_limits(self, experiment: E) -> Mapping[str, DropLimit]:
        """Call → how many of its samples may be dropped, of the calls that score."""
        rewards = sections_of(experiment, RewardConfig)
        return {
            call.name: DropLimit(f"{call.role}.max_dropped", rewards[call.role].max_dropped)
            for call in self.calls(experiment)
            if call.role in rewards
        }

    def eval_keys(self, experiment: E) -> tuple[str, ...]:
        """What samples of the evaluation data set begin with."""
        return eval_keys(self.rows.keys) if self.evaluates(experiment) else ()

    def forms(self, experiment: E) -> Mapping[str, Form]:
        """The form of every key of the graph: numbers are in the precision of the model that makes them."""
        own = {**self.rows.keys, **self.made}
        for role, kind in self.roles.items():
            own |= registered_forms(role, kind.methods)
        every = own | {EVAL_PREFIX + key: form for key, form in own.items()}
        declared = self.declared(experiment)
        made = (key for call in declared for key in call.outputs)
        every |= {key: form for key in made if (form := form_between(key)) is not None}
        calls = segmented(declared, experiment)
        for call in calls:
            if call.segment is not None and not call.segment.last:
                every |= {key: every[key.rpartition("_")[0]] for key in call.outputs}
        makers = {key: call.role for call in calls for key in (*call.outputs, *call.shown)}
        # An environment hands on what the model has said.
        handed_on = [key for key, role in makers.items() if role == ENVIRONMENT and key.endswith("logprobs")]
        makers |= dict.fromkeys(handed_on, "actor")
        exact = {key for key, role in makers.items() if getattr(getattr(experiment, role, None), "dtype", "") == "fp64"}
        return {key: form.exact if key in exact else form for key, form in every.items()}

    def graph(self, experiment: E) -> Graph:
        """Raises ConfigurationError."""
        return build_graph(self.calls(experiment), self.rows.keys, self.eval_keys(experiment))


ALGORITHMS = Room("hpcrl.recipes", "ALGORITHM", Algorithm)


def algorithm_of(of: ExperimentConfig | str) -> Algorithm[Any]:
    """The declaration of an experiment's algorithm, or of that of this name. Raises ConfigurationError."""
    return find(ALGORITHMS, of if isinstance(of, str) else of.algorithm, "algorithm")


def experiment_from(values: Mapping[str, Any]) -> Any:
    """The experiment of a configuration as JSON holds it.

    Raises:
        ConfigurationError: its algorithm is no longer there.
        msgspec.ValidationError: the values are not its.
    """
    return msgspec.convert(values, algorithm_of(values["algorithm"]).experiment)


def experiment_of(name: str) -> type[ExperimentConfig]:
    """The root dataclass of an algorithm.

    Raises:
        ConfigurationError: there is no such algorithm, or it has settings that no run could keep.
    """
    experiment = algorithm_of(name).experiment
    try:
        wrong = [setting for setting in settings(experiment) if not is_storable(setting.hint)]
    except (NameError, TypeError) as error:
        raise ConfigurationError(
            [f"algorithm = {name}: the settings of {experiment.__name__} cannot be read ({error})."],
            "Fix the file or set algorithm.",
        ) from error
    if wrong:
        raise ConfigurationError([_unstorable(name, setting) for setting in wrong], "Fix the file or set algorithm.")
    return experiment


def _unstorable(name: str, setting: Setting) -> str:
    return (
        f"algorithm = {name}: setting {setting.key} has the type {inspect.formatannotation(setting.type)}, but must be "
        "int, float, bool, str, a Literal, a tuple or Mapping of these, or one of them | None. Paths are PathText."
    )


CATALOGUE = Catalogue(lambda: names(ALGORITHMS), experiment_of)
"""For those that read configurations."""


def eval_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """What keys of training samples are called in an evaluation."""
    return tuple(EVAL_PREFIX + key for key in keys)


def on_eval(call: MFC) -> MFC:
    """The call on samples of the evaluation data set: it has keys of its own, which its role sees as in training."""
    own = {key: EVAL_PREFIX + key for key in (*call.inputs, *call.outputs)}
    return msgspec.structs.replace(under_other_keys(call, own), dataset="eval")
