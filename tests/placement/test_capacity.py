"""Memory that cannot suffice is refused with what would; memory that may not is said."""

import re
from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs, write_model

from hpcrl.errors import ConfigurationError
from hpcrl.placement.allocate import settle
from hpcrl.placement.capacity import Capacity, check_memory, on_its_device
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.sizes import GIB

SEVEN_BILLION = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
HERE = "this machine has"
WHOLE = """
from hpcrl.backends.backend import Backend

WHOLE = Backend(train=True, generate=True, axes=("dp", "tp", "pp"), dtypes=("fp32",), engine="nowhere:Engine")
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    write_model(tmp_path / "model", **SEVEN_BILLION, num_key_value_heads=32, vocab_size=32000)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values() | {"cluster": {"workers_per_node": 1, "nodes": 2}})
    return lambda *overrides: load_config(path, overrides, ALL_CHECKS)


def refused(experiment, capacity):
    with pytest.raises(ConfigurationError) as raised:
        list(check_memory(experiment, capacity))
    (problem,) = raised.value.problems
    return problem


def test_models_that_cannot_fit_are_refused_with_the_sizes_of_each_role(load, monkeypatch):
    monkeypatch.setattr("hpcrl.placement.capacity.MANY_NODES", 1)
    problem = refused(load("cluster.device=cpu"), Capacity(24 * GIB, "worker", HERE))
    assert "of a worker need 172.3 GiB (on worker 0 in actor_train: actor 73.8, reference 24.6, critic 73.8" in problem
    assert "this machine has 24.0 GiB." in problem
    assert "Neither bf16, nor another backend, nor offload, nor more nodes make it fit" in problem


def test_the_workers_of_a_node_share_what_it_has(load):
    alone, together = load("control.steps=1"), load("cluster.nodes=1", "cluster.workers_per_node=2")
    assert not list(check_memory(alone, Capacity(400 * GIB, "node", HERE)))
    assert "of a node need 344.6 GiB" in refused(together, Capacity(200 * GIB, "node", HERE))


def test_what_waits_on_the_host_is_not_refused_and_the_call_that_has_too_much_is_named(load):
    between = ("parameters=host", "gradients=drop", "optimizer=host")
    experiment = load(
        "cluster.device=cuda", *(f"{role}.between.{it}" for role in ("actor", "critic") for it in between)
    )
    problem = refused(experiment, Capacity(90 * GIB, "worker", HERE))
    assert "of a worker need 98.5 GiB (on worker 0 in critic_train: reference 24.6, critic 73.8)" in problem
    list(check_memory(experiment, Capacity(110 * GIB, "worker", HERE)))


ON_HOST = (
    "cluster.device=cuda",
    "actor.between.parameters=host",
    "actor.between.gradients=drop",
    "actor.between.optimizer=host",
)
"""Of the actor, parameters (24.6 GiB) and half of the moments (24.6 GiB) wait beside each of two workers."""


def host_of(gib, more="", asked=None):
    """Workers that have enough, on nodes that have so much; `asked` counts how often that is wanted."""

    def host():
        if asked is not None:
            asked.append(gib)
        size, source = (None, "nobody knows that") if gib is None else (gib * GIB, "cluster.slurm.memory gives it")
        return Capacity(size, "node", source, more)

    return Capacity(400 * GIB, "worker", HERE, host=host)


def test_models_that_cannot_wait_in_their_nodes_memory_are_refused_by_worker_size_and_settings(load):
    apart = [*ON_HOST, "reference.between.parameters=host", "calls={critic_inf: {mesh: 0, between: host}}"]
    problem = refused(load(*apart), host_of(98, "Or ask for more: cluster.slurm.memory."))
    assert problem == (
        "what is kept in the host's memory needs 98.5 GiB of a node (worker 0: actor 49.2, reference 24.6, "
        "critic@1 24.6), but cluster.slurm.memory gives it 98.0 GiB. Set actor.between.parameters or "
        "actor.between.optimizer or reference.between.parameters or calls.critic_inf.between to keep (of a copy, also "
        "to drop), or raise cluster.nodes. "
        "Or ask for more: cluster.slurm.memory."
    )
    assert not list(check_memory(load(*apart), host_of(99)))


def test_the_workers_of_a_node_wait_in_the_same_memory(load):
    experiment = load(*ON_HOST, "cluster.nodes=1", "cluster.workers_per_node=2")
    assert "98.5 GiB of a node (worker 0: actor 49.2)" in refused(experiment, host_of(98))
    assert not list(check_memory(experiment, host_of(99)))


def test_a_nodes_memory_that_nobody_knows_is_said_with_what_waits_there(load):
    (doubt,) = check_memory(load(*ON_HOST), host_of(None))
    assert doubt == "49.2 GiB of models will wait in the memory of a node; nobody knows that."


def test_a_nodes_memory_is_asked_for_only_where_something_waits_there(load):
    asked = []
    list(check_memory(load("cluster.device=cuda"), host_of(1, asked=asked)))
    assert asked == []
    list(check_memory(load(*ON_HOST), host_of(400, asked=asked)))
    assert asked == [400]


SHORT = [f"{role}.micro_batch_tokens=1024" for role in ("actor", "critic", "reference")]
ADVICE = [
    ("cpu", 60, [], "cluster.nodes = 4 and actor.backend = fsdp", True),
    ("cpu", 130, SHORT, "allocation = pipe_model", False),
    ("cuda", 24, [], "actor.backend = fsdp and actor.offload = parameters", True),
    ("cuda", 100, [], "actor.offload = optimizer and actor.dtype = bf16", True),
    ("cuda", 100, SHORT, "actor.offload = optimizer and actor.dtype = bf16", False),
    ("cuda", 170, [], "actor.offload = optimizer and actor.dtype = bf16", False),
    ("cuda", 170, SHORT, "actor.dtype = bf16", False),
]
"""Device and memory, settings, what the advice begins with, and whether a call may then still need too much."""


def followed(problem):
    """The settings with which it fits, and what a call may still need, if that is more than there is."""
    found = re.search(r"(?:It fits|They fit) with (.*?)(?:, but a call may still need ([\d.]+) GiB: .*)?\.$", problem)
    return found[1], [found[2]] if found[2] else []


@pytest.mark.parametrize(("device", "gib", "settings", "first", "doubtful"), ADVICE)
def test_the_advice_fits(load, device, gib, settings, first, doubtful):
    """The nodes have enough for what is offloaded."""
    capacity = Capacity(gib * GIB, "worker", HERE, host=lambda: Capacity(300 * GIB, "node", HERE))
    given = [f"cluster.device={device}", *settings]
    advice, call_gib = followed(refused(load(*given), capacity))
    assert advice.startswith(first) and bool(call_gib) == doubtful
    overrides = [setting.replace(" = ", "=") for setting in advice.split(" and ")]
    doubts = list(check_memory(settle(load(*given, *overrides)), capacity))
    assert [re.search(r"may need ([\d.]+) GiB", doubt)[1] for doubt in doubts] == call_gib


def test_what_does_not_fit_the_nodes_is_no_advice(load):
    capacity = Capacity(24 * GIB, "worker", HERE, host=lambda: Capacity(60 * GIB, "node", HERE))
    assert "fit with cluster.nodes = " in refused(load("cluster.device=cuda"), capacity)


def test_models_that_are_cut_need_no_more_nodes(load):
    Path("whole.py").write_text(WHOLE)
    backend = [f"{role}.backend=whole.py:WHOLE" for role in ("actor", "critic", "reference")]
    settings = [*backend, "cluster.nodes=1", "cluster.workers_per_node=8", "ppo.minibatches=1"]
    capacity = Capacity(30 * GIB, "worker", HERE)
    assert "They fit with allocation = pipe_model, but a call may still need " in refused(load(*settings), capacity)
    settings += SHORT
    assert "It fits with allocation = pipe_model." in refused(load(*settings), capacity)
    assert not list(check_memory(settle(load(*settings, "allocation=pipe_model")), capacity))


def test_layouts_that_are_given_are_split_within_nodes(load):
    """Before other backends are advised, under which each worker has a whole gradient during an update."""
    layouts = [f"{role}.layout=d8" for role in ("actor", "critic", "reference")]
    given = [*layouts, *SHORT, "cluster.nodes=2", "cluster.workers_per_node=4", "cluster.device=cuda"]
    capacity = Capacity(60 * GIB, "worker", HERE)
    advice, call_gib = followed(refused(load(*given), capacity))
    assert advice == "actor.layout = d2t4 and reference.layout = d2t4 and critic.layout = d2t4" and not call_gib
    overrides = [setting.replace(" = ", "=") for setting in advice.split(" and ")]
    assert not list(check_memory(load(*given, *overrides), capacity))


def test_gradients_that_are_whole_during_an_update_are_added_up_sooner_where_that_fits(load):
    """On nodes of one worker, without room for what is offloaded."""
    layouts = [f"{role}.layout=d8" for role in ("actor", "critic", "reference")]
    given = [*layouts, *SHORT, "cluster.nodes=8", "cluster.device=cuda"]
    advices = {}
    for gib in (45, 70):
        capacity = Capacity(gib * GIB, "worker", HERE, host=lambda: Capacity(10 * GIB, "node", HERE))
        advices[gib], call_gib = followed(refused(load(*given), capacity))
        assert not call_gib
    assert "actor.backend = fsdp and actor.reduce = micro_batch and actor.dtype = bf16 and reference" in advices[45]
    assert advices[70] == "actor.backend = fsdp and reference.backend = fsdp and critic.backend = fsdp"


def test_a_reference_that_is_the_actors_model_is_given_no_backend_of_its_own(load):
    adapters = ["actor.lora.rank=4", "critic.lora.rank=4", "reference.of=actor", *SHORT[:2], "cluster.device=cuda"]
    advice, _ = followed(refused(load(*adapters), Capacity(30 * GIB, "worker", HERE)))
    assert "actor.backend = fsdp" in advice and "reference.dtype = bf16" in advice and "reference.b" not in advice


def test_memory_for_one_call_may_be_short_and_is_said(load):
    (doubt,) = check_memory(load(), Capacity(173 * GIB, "worker", HERE))
    assert (
        "may need" in doubt
        and "(worker 0 in " in doubt
        and "this machine has 173.0 GiB" in doubt
        and "lower micro_batch_tokens" in doubt
    )


def test_what_nobody_knows_is_said_with_what_is_needed(load):
    (doubt,) = check_memory(load(), Capacity(None, "worker", "what the GPUs have is not known here"))
    assert doubt.startswith("a worker will need about") and "not known here" in doubt


def test_a_small_model_needs_no_word(load):
    write_model(Path("model"))
    assert not list(check_memory(load(), Capacity(None, "worker", "")))


@pytest.mark.parametrize(("of", "device"), [("worker", "cuda"), ("node", "cpu")])
def test_a_device_that_is_left_open_is_that_of_those_who_have_the_memory(load, of, device):
    capacity = Capacity(None, of, HERE)
    assert on_its_device(load(), capacity).cluster.device == device
    for named in ("cpu", "cuda"):
        assert on_its_device(load(f"cluster.device={named}"), capacity).cluster.device == named


def test_on_gpus_that_are_found_only_later_a_table_of_logits_has_the_rows_of_a_gpu(load):
    capacity = Capacity(None, "worker", "what the GPUs have is not known here")
    large = [*(f"{role}.path=large" for role in ("actor", "reference", "critic")), "data.tokenizer=model"]
    write_model(Path("large"), vocab_size=150_000)
    on_gpus = [*check_memory(load(*large, "cluster.device=cuda"), capacity)]
    assert [*check_memory(load(*large), capacity)] == on_gpus
    assert [*check_memory(load(*large, "cluster.device=cpu"), capacity)] != on_gpus
