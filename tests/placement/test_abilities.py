"""What roles ask of their backends, and what is said of a backend that cannot do it."""

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.backends.backend import BACKENDS
from hpcrl.errors import ConfigurationError
from hpcrl.placement.abilities import axes_problem
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
    assert names(BACKENDS) == ("fsdp", "native")
    backend = find(BACKENDS, "native", "actor.backend")
    assert (backend.train, backend.generate, backend.axes) == (True, True, ("dp", "tp", "pp"))


def test_an_unknown_backend_is_refused_with_the_nearest(problems):
    assert problems("critic.backend=nativ", "critic.layout=t2") == [
        "critic.backend = nativ must be one of fsdp, native, or file.py:NAME. Set critic.backend, probably to native."
    ]


def test_a_type_and_a_kind_of_call_that_a_backend_lacks_are_refused(problems):
    assert problems("actor.backend=reader.py:READER") == [
        "actor.dtype = fp32, but actor.backend = …/reader.py:READER computes in bf16. "
        "Set actor.dtype or actor.backend.",
        "actor.backend = …/reader.py:READER cannot train, but actor_train has to. Set actor.backend to one that can.",
        "actor.backend = …/reader.py:READER cannot generate, but actor_gen has to. Set actor.backend to one that can.",
    ]


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ("t2", None),
        ("p2", "reference.layout = p2 splits a model over workers, but this version runs data- and tensor-parallel"),
    ],
)
def test_a_layout_may_have_the_axes_of_the_backend(problems, layout, problem):
    reader = ("reference.backend=reader.py:READER", "reference.dtype=bf16", "generation.top_p=0")
    found = [text for text in problems(*reader, f"reference.layout={layout}") if "reference" in text]
    assert [text[: len(problem or "")] for text in found] == ([problem] if problem else [])


def test_a_size_of_one_splits_nothing():
    assert axes_problem("actor.layout", "d4t1", Layout(4), ("dp",)) is None
