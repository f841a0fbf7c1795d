"""What a worker has in memory in each call: cuts of models, copies that come and go."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.experiments import QWEN2_TINY, load_config, ppo_values, write_config, write_inputs

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import BetweenConfig, LoraConfig, ModelConfig, TrainedBetweenConfig, TrainedModelConfig
from hpcrl.families.reader import config_from_json, parameter_count, read_config
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import (
    BYTES,
    Memory,
    blocks_of,
    buffer_length,
    estimate_models,
    generating_memory,
    of_worker,
    parameters_held,
    role_memory,
)
from hpcrl.placement.plan import ModelName, plan_for
from hpcrl.placement.shards import WHOLE, Cut
from hpcrl.placement.worker_memory import host_memory, loads_of, peaks, staged

MODEL = replace(config_from_json(QWEN2_TINY, "config.json"), blocks=5, tied=False)
TRAINED, FROZEN = TrainedModelConfig(path="m", micro_batch_tokens=10), ModelConfig(path="m", micro_batch_tokens=10)
MIB = 2**20
PER_TOKEN = 4 * 32 + 3 * (32 + 16) + 3 * 48


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"cluster": {"nodes": 2, "workers_per_node": 2}}
    return load_config(write_config(tmp_path / "ppo.yaml", values))


def test_stages_hold_a_model_together_and_tensor_ranks_a_part_of_it_each():
    assert sum(parameters_held(MODEL, Cut(stage=stage, pp=3)) for stage in range(3)) == parameter_count(MODEL)
    assert sum(blocks_of(MODEL, 3, stage) for stage in range(3)) == 5
    half = parameters_held(MODEL, Cut(tp=2))
    norms = (2 * MODEL.blocks + 1) * 32
    assert half == (parameter_count(MODEL) - norms) / 2 + norms


def test_the_first_stage_keeps_the_activations_of_a_micro_batch_for_each_stage():
    layout = Layout(tp=2, pp=2)
    first, last = (role_memory(MODEL, 0, TRAINED, layout, stage=stage) for stage in range(2))
    sizes = [blocks_of(MODEL, 2, stage) for stage in range(2)]
    assert (first.activations, last.activations) == (
        10 * 2 * sizes[0] * (PER_TOKEN + 2 * 32) * 4 / 2,  # two rows are whole
        10 * 1 * sizes[1] * (PER_TOKEN + 2 * 32) * 4 / 2,
    )
    turns, on_the_way, late = 10 * 8, 2 * 10 * 32 / 2, 10 * (32 + 32 / 2)
    assert first.working == 4 * (2 * 10 * 32 + 10 * 4 * 48 / 2 + turns + on_the_way + late)
    assert last.working == 4 * (2 * 10 * 32 + 3 * 10 * 32 + 2 * 32 * 32 + turns + on_the_way + late)


def test_a_stage_caches_its_blocks_and_a_tensor_rank_its_heads_but_one_at_least():
    generation = GenerationConfig(max_new_tokens=15, slots=4)
    for tp, kv_size in ((1, 16), (2, 8), (4, 8)):
        first, last = (
            generating_memory(Memory(), MODEL, FROZEN, Layout(tp=tp, pp=2), generation, 10, stage, "cuda")
            for stage in range(2)
        )
        assert first.kv_cache == 2 * 4 * 32 * blocks_of(MODEL, 2, 0) * 2 * kv_size * 4
        assert last.kv_cache == 2 * 4 * 32 * blocks_of(MODEL, 2, 1) * 2 * kv_size * 4
        assert first.drawing < last.drawing


def test_on_a_cpu_a_stage_has_the_matrices_of_its_blocks_once_more():
    generation = GenerationConfig(max_new_tokens=15, slots=4)
    for dtype, size in (("fp32", 4), ("bf16", 2), ("fp64", 0)):
        of_role = replace(FROZEN, dtype=dtype)
        on_cpu, on_cuda = (
            generating_memory(Memory(), MODEL, of_role, Layout(tp=2), generation, 10, device=device).drawing
            for device in ("cpu", "cuda")
        )
        per_block = 32 * (32 + 2 * 16) / 2 + 32 * 32 / 2 + 3 * 32 * MODEL.intermediate_size / 2
        late = 10 * (32 + 32 / 2) * BYTES[dtype]  # what gloo has gathered
        assert on_cpu - on_cuda == MODEL.blocks * per_block * size + late


def test_a_copy_has_no_optimizer_and_only_what_generates_has_a_cache(experiment):
    plan = plan_for(replace(experiment, calls={"actor_gen": {"mesh": "0-1"}}), 2)
    models = estimate_models(plan, experiment)
    (home,), (copy,) = models[ModelName("actor")], models[ModelName("actor", 1)]
    assert (copy.parameters, copy.gradients, copy.optimizer) == (home.parameters, 0, 0)
    assert (home.kv_cache, home.gradients) == (0, home.parameters)
    assert copy.kv_cache == 64 * (16 + 16) * 2 * (2 * 16) * 4


@pytest.mark.parametrize(
    ("between", "device", "stays"),
    [("drop", "cuda", False), ("host", "cuda", False), ("host", "cpu", True), ("keep", "cuda", True)],
)
def test_what_goes_between_calls_is_counted_in_its_own_calls_only(experiment, between, device, stays):
    plan = plan_for(replace(experiment, calls={"actor_gen": {"mesh": "0-1", "between": between}}), 2)
    models = estimate_models(plan, experiment)
    loads = {load.call: load for load in loads_of(plan, models, 0, device)}
    assert "actor@1" in dict(loads["actor_gen"].parts)
    assert ("actor@1" in dict(loads["critic_train"].parts)) == stays
    copy = of_worker(models, plan.replica("actor_gen"), 0)
    extra = loads["actor_gen"].lasting - loads["critic_train"].lasting
    assert extra == (0 if stays else copy.parameters)
    assert [load.rank for load in peaks(plan, models, device)] == [0, 1, 2, 3]
    assert "actor_gen" not in {load.call for load in loads_of(plan, models, 3, device)}


ALL_ON_HOST = TrainedBetweenConfig(parameters="host", gradients="drop", optimizer="host")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_of_a_home_leaves_the_device_is_counted_in_the_calls_that_need_it(experiment, device):
    actor = replace(experiment.actor, between=ALL_ON_HOST)
    experiment = replace(experiment, actor=actor)
    plan = plan_for(experiment, 2)
    models = estimate_models(plan, experiment)
    of = of_worker(models, plan.home("actor"), 0)
    has = {load.call: dict(load.parts).get("actor", 0.0) for load in loads_of(plan, models, 0, device)}
    waits = of.parameters + of.optimizer
    on_device = 0.0 if device == "cuda" else waits
    assert has["actor_train"] == of.lasting
    assert has["actor_gen"] == max(of.parameters, on_device)
    assert has["critic_train"] == has["ref_inf"] == on_device
    assert host_memory(plan, models, 0, device) == waits - on_device


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_offloaded_is_counted_on_the_host(experiment, device):
    placed = replace(experiment, actor=replace(experiment.actor, dtype="bf16", offload="optimizer"))
    plan = plan_for(placed, 2)
    models = estimate_models(plan, placed)
    of, plain = (of_worker(estimate_models(plan, it), plan.home("actor"), 0) for it in (placed, experiment))
    assert (of.optimizer, of.offloaded) == (0, 6 * of.parameters / 4) and plain.offloaded == 0
    has = {load.call: dict(load.parts)["actor"] for load in loads_of(plan, models, 0, device)}
    here = of.offloaded if device == "cpu" else 0
    assert has["actor_train"] == of.parameters + of.gradients + here
    assert has["critic_train"] == of.parameters + of.gradients + here
    assert host_memory(plan, models, 0, device) == of.offloaded - here


@pytest.mark.parametrize(("backend", "kept", "gradients"), [("fsdp", 16, 0), ("zero3", 14, 4)])
def test_parameters_that_are_offloaded_are_counted_on_the_host_and_copies_are_not(experiment, backend, kept, gradients):
    own = {"backend": backend, "offload": "parameters"}
    actor, reference = replace(experiment.actor, dtype="bf16", **own), replace(experiment.reference, **own)
    elsewhere = {"actor_gen": {"mesh": "0-1", "backend": "native"}}
    placed = replace(experiment, actor=actor, reference=reference, calls=elsewhere)
    plan = plan_for(placed, 2)
    models, model = estimate_models(plan, placed), read_config(Path(experiment.actor.path))
    count = parameter_count(model)
    at_home, copy, frozen = (
        of_worker(models, plan.replica(call), 0) for call in ("actor_train", "actor_gen", "ref_inf")
    )
    assert (at_home.lasting, at_home.offloaded) == (gradients * count / 4, kept * count / 4)
    assert (frozen.lasting, frozen.offloaded) == (0, 4 * count / 4)
    assert (copy.offloaded, copy.parameters) == (0, 2 * buffer_length(model, WHOLE))
    loads = {load.call: load for load in loads_of(plan, models, 0, "cuda")}
    assert dict(loads["ref_inf"].parts).get("reference", 0) == 0 and loads["ref_inf"].passing == frozen.computing
    assert loads["move to actor@1"].passing >= at_home.merging == 2 * count / 4
    assert host_memory(plan, models, 0, "cuda") == at_home.offloaded + frozen.offloaded


def test_while_parameters_move_home_and_copy_are_there_and_what_is_packed_of_them(experiment):
    frozen = replace(experiment.reference, between=BetweenConfig(parameters="host"))
    actor = replace(experiment.actor, layout="d2", mesh="0-1", between=ALL_ON_HOST)
    placed = replace(experiment, actor=actor, reference=frozen, calls={"actor_gen": {"layout": "d2", "mesh": "1-2"}})
    plan = plan_for(placed, 2)
    models = estimate_models(plan, placed)
    size = of_worker(models, plan.home("actor"), 0).parameters
    moving = [
        {load.call: load for load in loads_of(plan, models, rank, "cuda")}.get("move to actor@1") for rank in range(4)
    ]
    has = [{} if load is None else dict(load.parts) for load in moving]
    assert [(parts.get("actor"), parts.get("actor@1")) for parts in has] == [
        (size, None), (size, size), (None, size), (None, None)
    ]  # fmt: skip
    assert moving[3] is None and "critic" in has[0] and "reference" not in has[0]
    assert [load.passing for load in moving[:3]] == [size, 2 * size, size]
    assert staged([size, 500 * MIB]) == size + 128 * MIB


def test_the_peak_is_named_by_the_call_that_has_it(experiment):
    frozen = replace(experiment.reference, between=BetweenConfig(parameters="host"))
    actor = replace(experiment.actor, between=ALL_ON_HOST)
    placed = replace(experiment, actor=actor, reference=frozen)
    plan = plan_for(placed, 2)
    assert {load.call for load in peaks(plan, lasting_of(plan, placed), "cuda")} == {"actor_train"}
    swapped = replace(experiment, critic=replace(experiment.critic, between=ALL_ON_HOST), reference=frozen)
    plan = plan_for(swapped, 2)
    assert {load.call for load in peaks(plan, lasting_of(plan, swapped), "cuda")} == {"critic_train"}


def lasting_of(plan, experiment):
    return {
        model: tuple(replace(it, kv_cache=0, drawing=0, activations=0, working=0, predicting=None) for it in stages)
        for model, stages in estimate_models(plan, experiment).items()
    }


def test_a_worker_has_its_stages_share(experiment):
    placed = replace(experiment, actor=replace(experiment.actor, layout="p2d2"))
    plan = plan_for(placed, 2)
    models, home = estimate_models(plan, placed), plan.home("actor")
    of = [of_worker(models, home, rank).parameters for rank in range(4)]
    assert of[0] == of[1] == 4 * buffer_length(*model_and_cut(placed, home, 0))
    assert of[2] == of[3] == 4 * buffer_length(*model_and_cut(placed, home, 3))
    assert of_worker(models, plan.home("reward"), 0) == Memory()


def model_and_cut(experiment, home, rank):
    return config_from_json(QWEN2_TINY, experiment.actor.path), home.cut(rank)


@pytest.mark.parametrize("backend", ["native", "fsdp"])
def test_a_reference_that_is_the_actor_without_adapters_has_no_parameters_of_its_own(experiment, backend):
    actor = replace(experiment.actor, lora=LoraConfig(rank=4), backend=backend)
    placed = replace(experiment, actor=actor, reference=replace(experiment.reference, of="actor"))
    models = estimate_models(plan_for(placed, 2), placed)
    (of,), (reference,) = models[ModelName("actor")], models[ModelName("reference")]
    whole = 4 * parameter_count(config_from_json(QWEN2_TINY, "config.json"))
    assert (reference.lasting, reference.computing > 0) == (0, True)
    assert of.merging == pytest.approx(whole / (4 if backend == "fsdp" else 1), rel=0.02)
    assert of.gradients == of.parameters - of.merging


def test_the_largest_micro_batches_of_a_models_calls_decide(experiment):
    small = replace(experiment, calls={"ref_inf": {"micro_batch_tokens": 16}})
    plan = plan_for(small, 2)
    (less,), (more,) = (
        estimate_models(plan_for(of, 2), of)[plan.home("reference").model] for of in (small, experiment)
    )
    assert less.working < more.working and less.parameters == more.parameters
