"""What roles ask of their backends, and what is said of a backend that cannot do it."""

from dataclasses import replace

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.backends import fsdp
from hpcrl.backends.backend import BACKENDS
from hpcrl.cli.main import main
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.placement.abilities import axes_problem, packages_of
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.layouts import Layout
from hpcrl.plugins import find, names

READER = """
from hpcrl.backends.backend import Backend

READER = Backend(train=False, generate=False, axes=("dp", "tp"), dtypes=("bf16",), engine="nowhere:Engine")
"""


@pytest.fixture
def problems(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    (tmp_path / "reader.py").write_text(READER)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values())

    def found(*overrides):
        with pytest.raises(ConfigurationError) as raised:
            load_config(path, overrides, ALL_CHECKS)
        return [text.replace(str(tmp_path), "…") for text in raised.value.problems]

    return found


def test_every_backend_of_hpcrls_own_declares():
    assert names(BACKENDS) == ("fsdp", "megatron", "native", "vllm", "zero1", "zero2", "zero3")
    backend = find(BACKENDS, "native", "actor.backend")
    assert (backend.train, backend.generate, backend.axes) == (True, True, ("dp", "tp", "pp"))


def test_an_unknown_backend_is_refused_with_the_nearest(problems):
    assert problems("critic.backend=nativ", "critic.layout=t2") == [
        "critic.backend = nativ must be one of fsdp, megatron, native, zero1, zero2, zero3, or file.py:NAME. "
        "Set critic.backend, probably to native."
    ]


def test_a_type_and_a_kind_of_call_that_a_backend_lacks_are_refused(problems):
    assert problems("actor.backend=reader.py:READER") == [
        "actor.dtype = fp32, but actor.backend = …/reader.py:READER computes in bf16. "
        "Set actor.dtype or actor.backend.",
        "actor.backend = …/reader.py:READER cannot train, but actor_train has to. "
        "Set actor.backend to fsdp, megatron, native, zero1, zero2 or zero3.",
        "actor.backend = …/reader.py:READER cannot generate, but actor_gen has to. "
        "Set actor.backend to fsdp, megatron, native, zero1, zero2 or zero3, or calls.actor_gen.backend.",
    ]


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ("t2", None),
        (
            "p2",
            "reference.layout = p2 splits a model over workers by pp, but reference.backend = …/reader.py:READER "
            "splits over dp and tp only. Set reference.layout to d2, or reference.backend to megatron or native.",
        ),
    ],
)
def test_a_layout_may_have_the_axes_of_the_backend(problems, layout, problem):
    reader = ("reference.backend=reader.py:READER", "reference.dtype=bf16", "generation.top_p=0")
    found = [text for text in problems(*reader, f"reference.layout={layout}") if "reference" in text]
    assert found == ([problem] if problem else [])


def test_layouts_that_fsdp_does_not_split_are_refused_together_before_anything_is_made(problems, tmp_path, capsys):
    wrong = ["--actor.backend", "fsdp", "--actor.layout", "t2", "--critic.backend", "fsdp", "--critic.layout", "p2"]
    wrong += ["--reference.backend", "fsdpp", "--calls", "{actor_gen: {layout: t2}}", "--cluster.workers_per_node", "2"]
    before = sorted(tmp_path.rglob("*"))
    assert main(["submit", "ppo.yaml", *wrong]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err.splitlines() == [
        "hpcrl: 4 problems, nothing was started.",
        "  - actor.layout = t2 splits a model over workers by tp, but actor.backend = fsdp splits over dp only. "
        "Set actor.layout to d2, or actor.backend to megatron or native.",
        "  - critic.layout = p2 splits a model over workers by pp, but critic.backend = fsdp splits over dp only. "
        "Set critic.layout to d2, or critic.backend to megatron or native.",
        "  - reference.backend = fsdpp must be one of fsdp, megatron, native, zero1, zero2, zero3, or "
        "file.py:NAME. "
        "Set reference.backend, probably to fsdp.",
        "  - calls.actor_gen.layout = t2 splits a model over workers by tp, but actor.backend = fsdp splits over dp "
        "only. Set calls.actor_gen.layout to d2, or actor.backend to megatron or native.",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_backend_is_proposed_that_computes_in_the_type(problems, monkeypatch):
    monkeypatch.setattr(fsdp, "BACKEND", replace(fsdp.BACKEND, dtypes=("bf16",)))
    assert problems("reference.backend=reader.py:READER", "actor.backend=reader.py:READER")[1].endswith(
        "cannot train, but actor_train has to. Set actor.backend to megatron, native, zero1, zero2 or zero3."
    )


def test_a_device_that_a_backend_does_not_compute_on_is_refused(problems):
    assert problems("actor.backend=megatron", "cluster.device=cpu") == [
        "actor.backend = megatron computes on cuda only, but cluster.device = cpu. "
        "Set actor.backend to fsdp, native, zero1, zero2 or zero3.",
    ]


def test_a_model_that_a_backend_does_not_compute_is_refused(problems, monkeypatch):
    needs = {"norm": "layer", "qkv_bias": True}
    monkeypatch.setattr(fsdp, "BACKEND", replace(fsdp.BACKEND, models=needs))
    assert problems("critic.backend=fsdp", "actor.backend=megatron") == [
        "critic.path has a model with norm = rms, but critic.backend = fsdp computes norm = layer. "
        "Set critic.backend to megatron, native, zero1, zero2 or zero3.",
    ]


TRAINER = """
from hpcrl.backends.backend import Backend

TRAINER = Backend(train=True, generate=False, axes=("dp",), dtypes=("fp32",), engine="nowhere:Engine")
"""


def test_a_call_may_have_a_backend_of_its_own_which_has_to_be_able(problems, tmp_path):
    """Evaluation generates where training does."""
    (tmp_path / "trainer.py").write_text(TRAINER)
    trainer, trained = "actor.backend=trainer.py:TRAINER", tmp_path / "ppo.yaml"
    assert problems(trainer) == [
        "actor.backend = …/trainer.py:TRAINER cannot generate, but actor_gen has to. "
        "Set actor.backend to fsdp, megatron, native, zero1, zero2 or zero3, or calls.actor_gen.backend.",
    ]
    native = load_config(trained, (trainer, "calls={actor_gen: {backend: native, layout: t2}}"), ALL_CHECKS)
    assert native.calls["actor_gen"]["backend"] == "native"
    assert problems("calls={actor_gen: {backend: trainer.py:TRAINER}, ref_inf: {backend: fdsp}}") == [
        "calls.actor_gen.backend = trainer.py:TRAINER must be one of fsdp, megatron, native, vllm, zero1, zero2, "
        "zero3: a "
        "backend in a file of yours holds a role at its home. Set calls.actor_gen.backend, or actor.backend.",
        "calls.ref_inf.backend = fdsp must be one of fsdp, megatron, native, vllm, zero1, zero2, zero3: a "
        "backend in a file "
        "of yours holds a role at its home. Set calls.ref_inf.backend, or reference.backend.",
    ]
    assert problems("calls={actor_gen: {backend: fsdp, layout: t2}}", "cluster.workers_per_node=2") == [
        "calls.actor_gen.layout = t2 splits a model over workers by tp, but calls.actor_gen.backend = fsdp splits over "
        "dp only. Set calls.actor_gen.layout to d2, or calls.actor_gen.backend to megatron or native.",
    ]
    assert problems("calls={actor_gen: {backend: megatron}}", "cluster.device=cpu") == [
        "calls.actor_gen.backend = megatron computes on cuda only, but cluster.device = cpu. "
        "Set calls.actor_gen.backend to fsdp, native, zero1, zero2 or zero3.",
    ]


def test_gradients_are_reduced_each_micro_batch_by_backends_that_shard_them_only(problems):
    assert problems("actor.reduce=micro_batch") == [
        "actor.reduce = micro_batch, but actor.backend = native does not let you choose when gradients are added up. "
        "Leave out actor.reduce, or set actor.backend to fsdp.",
    ]
    elsewhere = "calls={actor_gen: {backend: native}}"
    (other,) = problems("actor.reduce=micro_batch", "actor.backend=fsdp", elsewhere, "critic.backend=nativ")
    assert other.startswith("critic.backend")


def test_gradients_of_adapters_are_reduced_once_an_update(problems):
    lora = "actor.lora.rank=4"
    (other,) = problems(lora, "actor.backend=fsdp", "critic.backend=nativ")
    assert other.startswith("critic.backend")
    assert problems(lora, "actor.backend=fsdp", "actor.reduce=micro_batch") == [
        "actor.reduce = micro_batch, but actor.lora.rank = 4 has gradients of adapters alone, which are small and are "
        "added up once an update. Leave out actor.reduce or actor.lora.",
    ]


@pytest.mark.parametrize(
    ("what", "because"),
    [
        ("optimizer", "has masters and moments of adapters alone, which are small and stay on the device"),
        ("parameters", "keeps the frozen model on the device"),
    ],
)
def test_beside_adapters_nothing_is_offloaded(problems, what, because):
    assert problems("actor.lora.rank=4", "actor.backend=fsdp", f"actor.offload={what}") == [
        f"actor.offload = {what}, but actor.lora.rank = 4 {because}. Leave out actor.offload or actor.lora.",
    ]
    assert len(problems("actor.lora.rank=4", f"actor.offload={what}")) == 1, "no other backend is advised"


def test_an_optimizer_is_offloaded_by_backends_that_can_and_does_not_come_and_go_besides(problems):
    refused = " ".join(problems("actor.offload=optimizer", "actor.backend=megatron"))
    assert "actor.offload = optimizer, but actor.backend = megatron updates on its devices. Leave out" in refused
    assert problems("actor.offload=optimizer", "actor.between.optimizer=host") == [
        "actor.between.optimizer = host, but with actor.offload = optimizer masters and moments are always in the "
        "host's memory. Leave out actor.between.optimizer or actor.offload.",
    ]


def test_parameters_are_offloaded_by_backends_that_gather_them(problems):
    assert problems("actor.offload=parameters", "reference.offload=parameters", "critic.backend=zero2") == [
        f"{role}.offload = parameters, but {role}.backend = native keeps parameters on its devices. Leave out "
        f"{role}.offload, or set {role}.backend to fsdp or zero3."
        for role in ("actor", "reference")
    ]
    fitting = [f"{role}.{of}" for role in ("actor", "reference") for of in ("offload=parameters", "backend=zero3")]
    away = ("actor.between.parameters=host", "actor.between.optimizer=host", "actor.between.gradients=drop")
    assert problems(*fitting, *away) == [
        f"actor.between.{kind} = host, but with actor.offload = parameters {what} are always in the host's memory. "
        f"Leave out actor.between.{kind} or actor.offload."
        for kind, what in (("optimizer", "masters and moments"), ("parameters", "parameters"))
    ]
    (refused,) = problems("reference.offload=optimizer")
    assert refused.startswith("reference.offload = optimizer") and "none, parameters" in refused


def test_packages_are_those_of_the_backends_that_are_used():
    assert packages_of(["native", "", "megatron", "megatron"]) == ["megatron-core"]


def test_a_size_of_one_splits_nothing():
    assert axes_problem("actor.layout", "d4t1", Layout(4), ("dp",)) is None
