"""What a profile of an experiment measures, one thing after another. Pure; what it says crosses to workers in settings.

A step of the run is a task: it has its place in the list, so a run that is resumed begins with the first that is
missing.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig, TrainedModelConfig, lora_of
from hpcrl.dataflow.graph import MFC
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import config_from_json, config_to_json
from hpcrl.placement.abilities import server_of
from hpcrl.placement.allocate import axes_for
from hpcrl.placement.check_cuts import uncut
from hpcrl.placement.flops import flops_of
from hpcrl.placement.judges import models_held
from hpcrl.placement.memory import head_model
from hpcrl.placement.meshes import divisors
from hpcrl.placement.model_costs import block_shape, head_shape
from hpcrl.placement.profile_points import Sides, Timed, What, sides_of
from hpcrl.placement.rates import Link
from hpcrl.placement.workload import Workload
from hpcrl.recipes.algorithm import algorithm_of

MOST_TOKENS = 8192
"""In a call that is measured: beyond, times grow as between the last points."""


class ProfiledModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is measured with few blocks."""

    config: dict[str, Any]
    """Its config.json."""
    family: str
    head: HeadKind
    dtype: str
    backend: str
    tp: tuple[int, ...]
    """Among how many workers each matrix is cut, of all that a plan could have."""
    trains: bool
    generates: bool
    sides: Sides

    @property
    def model(self) -> DecoderConfig:
        return config_from_json(self.config, "the profiled model", self.family).with_head(self.head)

    @property
    def whats(self) -> tuple[What, ...]:
        found: tuple[What, ...] = ("predict",)
        return found + ("train",) * self.trains + ("generate",) * self.generates  # type: ignore[return-value]


class Task(NamedTuple):
    """One step: calls of a model on workers of which `tp` have each matrix together; or what workers do without one."""

    what: What | Literal["links", "node"]
    model: str = ""
    tp: int = 1


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step has measured."""

    what: str
    model: str = ""
    tp: int = 1
    points: tuple[Timed, ...] = ()
    links: dict[str, Link] = {}
    """near_exchange, near_send, near_alone, the same with far, host, disk: those that there are."""
    products: dict[str, list[tuple[float, float]]] = {}
    """By type of numbers: (rows, operations a second) of matrix products."""
    bytes_per_s: float = 0.0
    copied_per_s: float = 0.0
    memory: int = 0
    device: str = ""
    software: str = ""
    disturbed: int = 0
    """Measurements during which workers waited for processors that others had."""


def models_in(models: Mapping[str, Any]) -> dict[str, ProfiledModel]:
    """By name. Raises msgspec.ValidationError."""
    return msgspec.convert(dict(models), dict[str, ProfiledModel])


def tasks_of(models: Mapping[str, ProfiledModel]) -> tuple[str, ...]:
    """All that is measured of workers and models, in the order of the steps, as settings have it."""
    calls = (f"{what}/{name}/{tp}" for name, model in models.items() for tp in model.tp for what in model.whats)
    return ("node", "links", *calls)


def task_in(text: str) -> Task:
    what, _, rest = text.partition("/")
    model, _, tp = rest.rpartition("/")
    return Task(what, model, int(tp or 1))  # type: ignore[arg-type]


def profiled_models(experiment: Any, work: Workload) -> tuple[dict[str, ProfiledModel], list[str]]:
    """The models of an experiment that differ in what their parts take, and why others are left out. Reads each model's
    config.json. Raises ConfigurationError."""
    algorithm = algorithm_of(experiment)
    calls = algorithm.calls(experiment)
    found: dict[str, ProfiledModel] = {}
    left_out = []
    for role, config in models_held(experiment).items():
        own = [call for call in calls if call.role == role]
        if not own:
            continue
        model = head_model(role, config, algorithm)
        if isinstance(model, ForeignConfig) or flops_of(model) is None or server_of(config.backend) is not None:
            left_out.append(f"{role} is not measured: hpcrl does not know what its model consists of.")
            continue
        if lora_of(config) is not None:
            left_out.append(f"{role}.lora: training of adapters is not measured.")
        it = _profiled(experiment, role, config, model, own, work)
        key = (block_shape(model), head_shape(model), it.dtype, it.backend)
        same = next((name for name, other in found.items() if _key(other) == key), None)
        if same is None:
            found[role] = it
        else:
            other = found[same]
            found[same] = msgspec.structs.replace(
                other, trains=other.trains or it.trains, generates=other.generates or it.generates
            )
    return found, left_out


def _key(it: ProfiledModel) -> tuple[str, str, str, str]:
    return block_shape(it.model), head_shape(it.model), it.dtype, it.backend


def _profiled(
    experiment: Any, role: str, config: ModelConfig, model: DecoderConfig, calls: list[MFC], work: Workload
) -> ProfiledModel:
    generation = section(experiment, "generation", GenerationConfig) or GenerationConfig()
    slots = experiment.cluster.workers_per_node
    axes = axes_for(role, config, model)
    sizes = tuple(it for it in divisors(slots) if it == 1 or _is_cut(model, it, axes))
    longest = int((work.prompts + work.responses).max())
    tokens = min(4 * config.micro_batch_tokens, work.tokens, MOST_TOKENS)
    return ProfiledModel(
        config=config_to_json(model.with_head("vocabulary"), "float32"),
        family=model.family,
        head=model.head,
        dtype=config.dtype,
        backend=config.backend,
        tp=sizes,
        trains=_trains_all(config, calls),
        generates=any(call.kind == "generate" for call in calls),
        sides=sides_of(tokens, longest, min(generation.slots, work.samples), model.max_positions),
    )


def _trains_all(config: ModelConfig, calls: list[MFC]) -> bool:
    """Whether all parameters are trained, and not adapters alone."""
    trained = isinstance(config, TrainedModelConfig) and lora_of(config) is None
    return trained and any(call.kind == "train_step" for call in calls)


def _is_cut(model: DecoderConfig, size: int, axes: tuple[str, ...]) -> bool:
    return "tp" in axes and not uncut(model, size)
