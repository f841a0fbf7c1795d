"""What `register` refuses, and which calls it makes of a role's methods."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import registered_script

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.model import PlacementConfig
from hpcrl.data.form import BYTES, Form
from hpcrl.errors import ConfigurationError
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import RoleKind, algorithm_of
from hpcrl.recipes.registered import Custom, Dispatch, register

ALGORITHM = f"{Path(registered_script.__file__)}:ALGORITHM"


def experiment(**settings: Any) -> Any:
    evaluating = ControlConfig(steps=3, evaluate=Frequency(steps=2))
    return algorithm_of(ALGORITHM).experiment(algorithm=ALGORITHM, control=evaluating, **settings)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((["ONE_TO_ALL"], {}), "the mode is 'ONE_TO_ALL'; it has to be one of Dispatch (ONE_TO_ALL, ALL_TO_ALL, "),
        (
            ([Dispatch.ONE_TO_ALL, "RANK_ZERO"], {}),
            "execute is 'RANK_ZERO'; it has to be one of Execute: ALL, RANK_ZERO",
        ),
        (([Dispatch.DP_COMPUTE], {"outputs": {"a": "float32"}}), "has neither inputs nor outputs"),
        (([Dispatch.DP_COMPUTE], {"changes": True}), "and changes nothing: take a mode that ends with _PROTO"),
        (([Dispatch.DP_COMPUTE_PROTO], {"outputs": {"a": "float32"}}), "inputs is empty: name the keys that it reads"),
        (([Dispatch.DP_COMPUTE_PROTO], {"inputs": ["y"]}), "outputs is empty: name their keys and types"),
        (([Dispatch.DP_COMPUTE_PROTO], {"inputs": ["y"], "outputs": {"a": "float8"}}), "the type 'float8'; there are"),
        (([Custom(list, list)], {"inputs": ["y"], "changes": True}), "has no outputs, and goes to all parts"),
    ],
)
def test_what_does_not_go_together_is_refused_where_it_is_written(given: Any, said: str) -> None:
    modes, others = given
    with pytest.raises(ValueError, match="@register of ") as error:
        register(*modes, **others)(lambda self: None)
    assert said in str(error.value)


def test_a_group_keeps_its_own_names() -> None:
    def ranks(self: Any) -> None: ...

    with pytest.raises(ValueError, match="worker groups have a ranks of their own"):
        register(Dispatch.ONE_TO_ALL)(ranks)


def test_registered_methods_are_calls_of_their_role_in_an_evaluation_too() -> None:
    calls = {call.name: call for call in algorithm_of(ALGORITHM).calls(experiment())}
    double, told = calls["actor_double"], calls["actor_told"]
    assert (double.kind, double.inputs, double.outputs, double.method) == ("inference", ("y",), ("doubled",), "double")
    assert calls["eval_actor_double"].inputs == ("eval_y",) and "eval_actor_told" not in calls
    assert told.outputs == ("actor_told",) and (told.dispatch.goes_to, told.dispatch.values) == ("ranks", True)
    assert calls["critic_pull"].changes == "critic" and calls["actor_of_first"].dispatch.goes_to == "first"
    forms = algorithm_of(ALGORITHM).forms(experiment())
    assert (forms["doubled"], forms["eval_low"], forms["actor_told"]) == (Form("float64"), Form("bool"), BYTES)


def test_who_makes_a_call_follows_from_its_mode_and_the_layout() -> None:
    cluster = ClusterConfig(device="cpu", workers_per_node=4)
    staged = PlacementConfig(layout="d2t1p2")
    plan = plan_for(experiment(cluster=cluster, actor=staged, critic=staged))
    parts = {call: [part.ranks for part in plan.parts(f"actor_{call}")] for call in ("told", "double", "of_first")}
    assert parts == {"told": [(0,), (1,), (2,), (3,)], "double": [(0, 2), (1, 3)], "of_first": [(2,)]}
    assert plan.parts("actor_of_first")[0].head == plan.home("actor").parts[0].head
    assert plan.replica("critic_spread").layout == "d4t1p1" and not plan.replica("critic_spread").is_home
    assert plan.replica("critic_weight").is_home
    assert plan_for(experiment(cluster=cluster)).replica("critic_spread").is_home


def problems(**settings: Any) -> str:
    return "\n".join(str(problem) for check in ALL_CHECKS for problem in check(experiment(**settings)))


def test_what_is_registered_without_stages_is_not_placed_with_some() -> None:
    cluster = ClusterConfig(device="cpu", workers_per_node=4)
    said = problems(cluster=cluster, calls={"critic_spread": {"layout": "d1t2p2"}})
    assert "calls.critic_spread.layout = d1t2p2 has pipeline stages, but spread is registered" in said
    assert "Set calls.critic_spread.layout to d2t2p1, or leave out calls.critic_spread." in said
    assert not problems(cluster=cluster, calls={"critic_spread": {"layout": "d2t2"}})


def test_a_key_that_nobody_makes_is_refused_with_the_declaration() -> None:
    class Odd:
        @register(Dispatch.DP_COMPUTE_PROTO, inputs=("why",), outputs={"w": "float64"})
        def odd(self, rows: Any) -> Any: ...

    kind = RoleKind("nobody:makes", methods=Odd)
    odd = replace(algorithm_of(ALGORITHM), roles={**algorithm_of(ALGORITHM).roles, "actor": kind})
    with pytest.raises(ConfigurationError, match="actor_odd needs key 'why', which no call makes"):
        odd.graph(experiment())
