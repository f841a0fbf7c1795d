"""How much memory a worker will need, from shapes alone. An estimate: allocators and libraries take more."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig, TrainedModelConfig, models_of
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameter_count, read_config
from hpcrl.placement.layouts import Layout
from hpcrl.placement.plan import Plan
from hpcrl.recipes.algorithm import Algorithm, algorithm_of

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2}
GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """Bytes of one role on one worker. What a call takes is given back after it."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    kv_cache: float = 0.0
    activations: float = 0.0

    @property
    def lasting(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def passing(self) -> float:
        """The most that a call takes; generation and training never run at once."""
        return max(self.kv_cache, self.activations)


def worker_memory_gib(plan: Plan, roles: Mapping[str, Memory]) -> tuple[float, ...]:
    """GiB per worker, by rank: all of its roles last, and one call at a time runs."""
    total = []
    for worker in plan.workers:
        here = [memory for role, memory in roles.items() if worker.rank in plan.home(role).ranks]
        lasting = sum(memory.lasting for memory in here)
        total.append((lasting + max((memory.passing for memory in here), default=0.0)) / GIB)
    return tuple(total)


def estimate_roles(plan: Plan, experiment: ExperimentConfig) -> dict[str, Memory]:
    """The memory of every role that holds a model. Reads each model's config.json."""
    data, generation = section(experiment, "data", DataConfig), section(experiment, "generation", GenerationConfig)
    generating = {call.role for call in plan.calls if call.kind == "generate"}
    blends = {call.role for call in plan.calls if call.kind == "blend"}
    models, found = models_of(experiment), {}
    for replica in plan.replicas:
        role = replica.role
        if role not in models:
            continue
        config = models[role]
        model, count = parameters_of_role(role, config, algorithm_of(plan.algorithm))
        cached = 0
        if generation is not None and role in generating:
            longest_prompt = None if data is None else data.max_prompt_tokens
            cached = generation.slots * longest_sequence(model, longest_prompt, generation)
        found[role] = role_memory(model, count, config, replica.arrangement, cached, role in blends)
    return found


def parameters_of_role(role: str, config: ModelConfig, algorithm: Algorithm[Any]) -> tuple[DecoderConfig, int]:
    """A role's model, as its folder describes it, and how many parameters it has under the role's head."""
    model = read_config(Path(config.path), config.family, f"{role}.family")
    head = algorithm.roles[role].head
    return model, parameter_count(model if head is None else model.with_head(head))


def state_size(dtype: str) -> int:
    """Bytes of a number that an optimizer keeps of a parameter of this type."""
    return max(4, BYTES[dtype])


def size_in_words(bytes_: float) -> str:
    """In GiB or MiB."""
    return f"{bytes_ / GIB:.2f} GiB" if bytes_ >= GIB else f"{bytes_ / 2**20:.2f} MiB"


def longest_sequence(model: DecoderConfig, max_prompt_tokens: int | None, generation: GenerationConfig) -> int:
    """Tokens of the longest prompt and response; without a bound for prompts, all that the model has positions for."""
    if max_prompt_tokens is None:
        return model.max_positions
    return min(model.max_positions, max_prompt_tokens + generation.max_new_tokens)


def role_memory(
    model: DecoderConfig, count: int, config: ModelConfig, layout: Layout, cached: int, blended: bool = False
) -> Memory:
    """One worker's share of a role of `count` parameters: AdamW's state and masters are cut over dp too, the rest over
    tp · pp. A `blended` role has masters and no moments."""
    trained = isinstance(config, TrainedModelConfig)
    size = BYTES[config.dtype]
    state = state_size(config.dtype)
    share = count / (layout.tp * layout.pp)
    masters = state if size < state else 0
    blocks = model.blocks / (layout.tp * layout.pp)
    kept_blocks = blocks if trained else 1
    return Memory(
        parameters=share * size,
        gradients=share * state if trained else 0.0,
        optimizer=share * ((2 * state if trained else 0) + (masters if trained or blended else 0)) / layout.dp,
        kv_cache=cached * blocks * 2 * model.kv_size * size,
        activations=config.micro_batch_tokens * kept_blocks * _activations_per_token(model) * size,
    )


def _activations_per_token(model: DecoderConfig) -> int:
    """Numbers that a block keeps for its backward pass: norms in and out, q k v, the first two also as they are turned,
    attention's output, the MLP's 3. Logits are not among them."""
    attention = 3 * (model.heads * model.head_dim + model.kv_size)
    return 4 * model.hidden_size + attention + 3 * model.intermediate_size
