"""How much memory a worker will need, from shapes alone. An estimate: allocators and libraries take more."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hpcrl.backends.backend import CutBy
from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import sections_of
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.judge import drawing_of
from hpcrl.config.model import BetweenConfig, ModelConfig, TrainedModelConfig, lora_of, offload_of
from hpcrl.dataflow.graph import Kind
from hpcrl.families.adapters import rows_not_kept, with_adapters
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import family_of, parameter_count, read_config
from hpcrl.families.stacks import stacks_of
from hpcrl.placement.abilities import backend_of
from hpcrl.placement.buffers import length_of
from hpcrl.placement.cache_memory import cached_numbers, is_recorded
from hpcrl.placement.classifier_sizes import numbers_of_classifier
from hpcrl.placement.cut_memory import ADDED_UP, cut_by_elements, cut_by_rows
from hpcrl.placement.judges import models_held
from hpcrl.placement.layouts import Layout
from hpcrl.placement.pass_memory import MicroBatch
from hpcrl.placement.plan import ModelName, Plan, ReplicaPlan
from hpcrl.placement.served_memory import served_bytes
from hpcrl.placement.shards import Cut, held, sizes_held, stages
from hpcrl.recipes.algorithm import Algorithm, algorithm_of

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Memory:
    """Bytes of one role on one worker. What a call takes is given back after it."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    offloaded: float = 0.0
    """Always in the host's memory: the optimizer, and masters beside the parameters; or the parameters, too."""
    kv_cache: float = 0.0
    drawing: float = 0.0
    """Beside the cache: matrices as decoding reads them, a prefill, the next tokens' logits and probabilities."""
    activations: float = 0.0
    """Kept by training for the backward pass."""
    working: float = 0.0
    """Beside them: the table of logits and its gradient, or a block and the gradients within."""
    predicting: float | None = None
    """Taken by a call that neither trains nor generates; None: as much as by training."""
    merging: float = 0.0
    """Taken by a move from it: parameters as they are sent, with adapters merged in, or from the host's memory."""
    between: BetweenConfig = field(default_factory=BetweenConfig)
    """What of it leaves the device between calls, at home; of a copy its replica says that."""

    @property
    def lasting(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def passing(self) -> float:
        """The most that a call takes; generation and training never run at once."""
        return max(self.generating, self.computing)

    @property
    def generating(self) -> float:
        return self.kv_cache + self.drawing

    @property
    def computing(self) -> float:
        """What training takes, or a model that is not trained."""
        return self.activations + self.working


Models = Mapping[ModelName, tuple[Memory, ...]]
"""Of a worker of each model that has memory to speak of: one for each of its stages."""


def of_worker(models: Models, replica: ReplicaPlan, rank: int) -> Memory:
    """What one of a replica's workers has of it."""
    stages = models.get(replica.model, ())
    return stages[min(replica.cut(rank).stage, len(stages) - 1)] if stages else Memory()


def estimate_models(plan: Plan, experiment: ExperimentConfig) -> dict[ModelName, tuple[Memory, ...]]:
    """The memory of everything that holds a model. Reads each model's config.json, and how large a classifier's tensors
    are."""
    models, judges = models_held(experiment), sections_of(experiment, ClassifierConfig)
    found: dict[ModelName, tuple[Memory, ...]] = {}
    for replica in plan.replicas:
        if replica.role in models:
            config = config_at(models, replica)
            model = head_model(replica.role, config, algorithm_of(plan.algorithm))
            calls = [call for call in plan.calls if plan.at[call.name] == replica.model]
            tokens = max((plan.micro_batches.get(call.name, 0) for call in calls), default=0)
            cut = replace(config, micro_batch_tokens=tokens or config.micro_batch_tokens)
            found[replica.model] = replica_memory(experiment, replica, cut, model, {call.kind for call in calls})
        elif replica.role in judges:
            found[replica.model] = (classifier_memory(judges[replica.role]),)
    return found


def config_at(models: Mapping[str, ModelConfig], replica: ReplicaPlan) -> ModelConfig:
    """The settings of a replica's model, as it is there: a copy is not trained."""
    if replica.of:
        return as_frozen(models[replica.of])
    return models[replica.role] if replica.is_home else as_frozen(models[replica.role])


def replica_memory(
    experiment: ExperimentConfig,
    replica: ReplicaPlan,
    config: ModelConfig,
    model: DecoderConfig,
    kinds: Collection[Kind],
) -> tuple[Memory, ...]:
    """Of each stage of a replica at which calls of these kinds are made. What lasts depends on a blend alone, and what
    a call takes on its own kind alone: so bytes of models and calls add up."""
    found = []
    for stage in range(replica.arrangement.pp):
        memory = _stage_memory(experiment, replica, config, model, kinds, stage)
        if isinstance(config, TrainedModelConfig) and config.offload == "none" and not replica.cut_by:
            frozen = _stage_memory(experiment, replica, as_frozen(config), model, kinds, stage)
            memory = replace(memory, predicting=frozen.computing)
        found.append(memory)
    return tuple(found)


def _stage_memory(
    experiment: ExperimentConfig,
    replica: ReplicaPlan,
    config: ModelConfig,
    model: DecoderConfig,
    kinds: Collection[Kind],
    stage: int,
) -> Memory:
    layout, device = replica.arrangement, experiment.cluster.device
    generation, longest_prompt = drawing_of(experiment, replica.role) or (None, None)
    if replica.served and generation is not None:
        size, longest = BYTES[config.dtype], longest_sequence(model, longest_prompt, generation)
        return Memory(**served_bytes(model, layout, generation, longest, size, device)._asdict())
    count = buffer_length(model, Cut(0, layout.tp, stage, layout.pp))
    blended = "blend" in kinds
    memory = role_memory(model, count, config, layout, blended, device, stage)
    if (lora := lora_of(config)) is not None:
        memory = as_adapted(memory, with_adapters(model, lora), config, layout, stage)
    if by := replica.cut_by:
        memory = as_sharded(memory, model, config, layout, blended, by)
    elif isinstance(config, TrainedModelConfig) and (adds_up := backend_of(replica.backend).adds_up):
        memory = as_added_up(memory, model, config, layout, each=adds_up == "micro_batch")
    if replica.of:
        memory = replace(memory, parameters=0.0)
    if generation is None or "generate" not in kinds:
        return memory
    return generating_memory(memory, model, config, layout, generation, longest_prompt, stage, device)


def as_frozen(config: ModelConfig) -> ModelConfig:
    """The same model where it is not trained."""
    return replace(ModelConfig(**{of.name: getattr(config, of.name) for of in fields(ModelConfig)}), offload="none")


def parameters_held(model: DecoderConfig, cut: Cut) -> int:
    """How many numbers a rank has of a model, padding included."""
    return sum(sizes_held(model, cut))


def buffer_length(model: DecoderConfig, cut: Cut) -> int:
    """How many numbers a rank's flat buffer of it has: the same, and gaps of alignment."""
    return length_of(sizes_held(model, cut))


def blocks_of(model: DecoderConfig, pp: int, stage: int) -> int:
    """How many blocks a stage has."""
    return sum(1 <= layer <= model.blocks for layer in stages(model, pp)[stage])


def head_model(role: str, config: ModelConfig, algorithm: Algorithm[Any]) -> DecoderConfig:
    """A role's model, as its folder describes it, under the role's head."""
    model = read_config(Path(config.path), config.family, f"{role}.family", config.model)
    return model.with_experts_cut(config.experts).with_head(algorithm.roles[role].head)


def classifier_memory(config: ClassifierConfig) -> Memory:
    """Of a worker that holds a classifier that transformers loads, whole on each: its tensors, and a pass's widest
    block."""
    assert config.path is not None, "the checks of a configuration refuse a role without"
    folder, size = Path(config.path), BYTES[config.dtype]
    fields = json.loads((folder / "config.json").read_bytes())
    hidden = next((fields[name] for name in ("hidden_size", "dim", "d_model", "n_embd") if name in fields), 0)
    per_token = 10 * hidden + 3 * fields.get("intermediate_size", 4 * hidden)
    return Memory(
        parameters=numbers_of_classifier(folder, fields) * size,
        working=config.micro_batch_tokens * per_token * size,
    )


def state_size(dtype: str) -> int:
    """Bytes of a number that an optimizer keeps of a parameter of this type."""
    return max(4, BYTES[dtype])


def longest_sequence(model: DecoderConfig, max_prompt_tokens: int | None, generation: GenerationConfig) -> int:
    """Tokens of the longest prompt and response; without a bound for prompts, all that the model has positions for."""
    if max_prompt_tokens is None:
        return model.max_positions
    return min(model.max_positions, max_prompt_tokens + generation.max_new_tokens)


def role_memory(
    model: DecoderConfig,
    count: int,
    config: ModelConfig,
    layout: Layout,
    blended: bool = False,
    device: str = "cpu",
    stage: int = 0,
) -> Memory:
    """A worker's memory of a role of which it has `count` parameters: AdamW's state and masters are cut over dp too. A
    `blended` role has masters and no moments."""
    trained = isinstance(config, TrainedModelConfig)
    size, state = BYTES[config.dtype], state_size(config.dtype)
    offloaded = isinstance(config, TrainedModelConfig) and config.offload != "none"
    masters = state if size < state or offloaded else 0
    optimizer = count * ((2 * state if trained else 0) + (masters if trained or blended else 0)) / layout.dp
    at_once = MicroBatch(model, config.micro_batch_tokens, size, state, layout, device, stage)
    return Memory(
        parameters=count * size,
        gradients=count * state if trained else 0.0,
        optimizer=0.0 if offloaded else optimizer,
        offloaded=optimizer if offloaded else 0.0,
        activations=_kept_activations(at_once, config) if isinstance(config, TrainedModelConfig) else 0.0,
        working=at_once.training(recompute=config.recompute)
        if isinstance(config, TrainedModelConfig)
        else at_once.predicting(),
        between=config.between,
    )


def as_adapted(memory: Memory, model: DecoderConfig, config: ModelConfig, layout: Layout, stage: int = 0) -> Memory:
    """The same of a worker that trains the adapters of `model`, and nothing else. The output matrix has no gradient;
    where there are no adapters, matrices' rows are not kept."""
    size, state = BYTES[config.dtype], state_size(config.dtype)
    trained = buffer_length(model, Cut(0, layout.tp, stage, layout.pp))
    again = isinstance(config, TrainedModelConfig) and config.recompute
    rows = 0 if again else rows_not_kept(model, family_of(model.base), stages(model, layout.pp)[stage], layout.tp)
    share = trained / (memory.gradients / state) if memory.gradients else 0.0
    of_head = 2 * model.vocabulary_size * model.hidden_size / layout.tp * state if model.head == "vocabulary" else 0.0
    return replace(
        memory,
        parameters=memory.parameters + trained * size,
        gradients=trained * state,
        optimizer=memory.optimizer * share,
        activations=memory.activations - config.micro_batch_tokens * rows * size * (layout.pp - stage),
        working=max(memory.working - of_head, memory.working / 2),
        merging=memory.parameters,
    )


def as_sharded(
    memory: Memory,
    model: DecoderConfig,
    config: ModelConfig,
    layout: Layout,
    blended: bool = False,
    by: CutBy = "rows",
) -> Memory:
    """The same of a worker that keeps its part of every parameter. Adapters it has whole, as before."""
    size, state, adapted = BYTES[config.dtype], state_size(config.dtype), lora_of(config) is not None
    trained = isinstance(config, TrainedModelConfig) and not adapted
    kept = {"trained": trained, "changes": trained or blended}
    offload = offload_of(config)
    if by == "rows":
        each = isinstance(config, TrainedModelConfig) and config.reduce == "micro_batch"
        cut = cut_by_rows(model, layout.dp, size, state, **kept, offload=offload, each=each)
    else:
        cut = cut_by_elements(model, layout.dp, size, state, **kept, offload=offload)
    found = replace(memory, **{**cut._asdict(), "working": memory.working + cut.working})
    if not adapted:
        sent = parameter_count(model) * size / layout.dp
        return replace(found, merging=sent) if offload == "parameters" else found
    beside = replace(found, gradients=memory.gradients, optimizer=memory.optimizer, merging=cut.parameters)
    return replace(beside, parameters=memory.parameters - memory.merging + cut.parameters)


def as_added_up(memory: Memory, model: DecoderConfig, config: TrainedModelConfig, layout: Layout, each: bool) -> Memory:
    """The same of a worker that keeps its part of the gradients' sum.

    Once an update, all gradients are there, in the type of masters, with room for those that are added up at a time.
    After `each` micro-batch they go as they come: there are as many as are added up at a time, in `dtype`, and their
    sums; a parameter that has more goes by itself.
    """
    if layout.dp == 1:
        return memory
    size, state = BYTES[config.dtype], state_size(config.dtype)
    count, part = memory.gradients / state, memory.gradients / layout.dp
    some, wide = min(ADDED_UP, count), state * (size < state)
    if each:
        largest = max(stack.numel for stack in stacks_of(model))
        adding_up = part + max(some * (2 * size + wide), largest * (size + wide))
        computing = memory.computing + adding_up - part
    else:
        adding_up = memory.gradients + part + some * state
        computing = memory.computing + memory.gradients
    return replace(memory, gradients=part, working=max(computing, adding_up) - memory.activations)


def generating_memory(
    memory: Memory,
    model: DecoderConfig,
    config: ModelConfig,
    layout: Layout,
    generation: GenerationConfig,
    max_prompt_tokens: int | None,
    stage: int = 0,
    device: str = "cpu",
) -> Memory:
    """The same role when it generates, too: a cache of all slots and what drawing from it takes, in the last stage."""
    size = BYTES[config.dtype]
    longest = longest_sequence(model, max_prompt_tokens, generation)
    longest_prompt = max(1, longest - generation.max_new_tokens)
    rows = -(-generation.slots // layout.pp)  # of a cohort, of which there are as many as stages
    prefilled = min(config.micro_batch_tokens, rows * longest_prompt)
    prefill = MicroBatch(model, prefilled, size, state_size(config.dtype), layout, device, stage)
    filtered = generation.top_k > 0 or generation.top_p < 1
    # Logits, at another temperature a copy, probabilities, their running sum in float64; sorted with their tokens.
    numbers = 16 + 4 * (generation.temperature != 1) + 28 * filtered
    draws = stage == layout.pp - 1
    head = draws * model.vocabulary_size * model.hidden_size / layout.tp
    packed = _packed(model, Cut(0, layout.tp, stage, layout.pp)) if device == "cpu" and size <= 4 else 0
    tables = draws * model.vocabulary_size * rows * numbers
    visiting = prefill.visiting(longest=longest_prompt) + prefill.let_go_late
    layers, recorded = stages(model, layout.pp)[stage], is_recorded(generation, layout, device)
    return replace(
        memory,
        kv_cache=cached_numbers(model, layers, longest, generation, layout, device, size) * size,
        drawing=memory.drawing + (head + packed) * size + (visiting + tables if recorded else max(visiting, tables)),
    )


def _packed(model: DecoderConfig, cut: Cut) -> int:
    """How many numbers of a stage's blocks are laid out once more for a generation on a CPU: those of its matrices, but
    not experts' (see models/products.py)."""
    parameters = (it.parameter for it in held(model, cut))
    return sum(it.numel for it in parameters if 1 <= it.layer <= model.blocks and len(it.shape) == 2)


def _kept_activations(at_once: MicroBatch, config: TrainedModelConfig) -> float:
    """What the blocks of a stage keep for the backward pass, of as many micro-batches as there are stages
    from it on."""
    blocks = blocks_of(at_once.model, at_once.layout.pp, at_once.stage)
    return at_once.kept(blocks, recompute=config.recompute) * (at_once.layout.pp - at_once.stage)
