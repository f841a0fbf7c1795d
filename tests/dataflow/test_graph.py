import itertools
import pickle
import random
import re

import pytest
from msgspec.structs import replace
from support.recipes import ppo

from hpcrl.dataflow.graph import (
    MFC,
    Edge,
    Graph,
    build_graph,
    changed_by,
    lags_beyond_choice,
    producers,
    topological_order,
)
from hpcrl.errors import ConfigurationError

GEN = MFC("gen", "actor", "generate", ("x",), ("y",))
REW = MFC("rew", "reward", "inference", ("y",), ("r",))
TRAIN = MFC("train", "actor", "train_step", ("y", "r"))
EVAL = MFC("eval", "actor", "generate", ("eval_x",), ("eval_y",), {"eval_x": "x"}, {"y": "eval_y"}, "eval")
LOOP = (GEN, REW, TRAIN, EVAL)


def edges(graph: Graph, kind: str) -> dict[tuple[str, str], object]:
    found = [edge for edge in graph.edges if edge.kind == kind]
    return {(edge.source, edge.target): edge.keys if kind == "data" else edge.steps for edge in found}


def test_data_edges_carry_the_keys_that_flow() -> None:
    graph = build_graph(LOOP, ["x"], ["eval_x"])
    assert edges(graph, "data") == {("gen", "rew"): ("y",), ("gen", "train"): ("y",), ("rew", "train"): ("r",)}
    assert producers(graph, "train") == {"gen": ("y",), "rew": ("r",)}
    assert producers(graph, "gen") == {}


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_training_calls_read_the_version_of_an_earlier_step_and_evaluation_that_of_its_own(lag: int) -> None:
    graph = build_graph((replace(GEN, lag=lag), *LOOP[1:]), ["x"], ["eval_x"])
    assert edges(graph, "version") == {("train", "gen"): 1 + lag, ("train", "eval"): 0}


def test_a_train_step_comes_after_the_reads_of_what_it_overwrites() -> None:
    value = MFC("value", "actor", "inference", ("x",), ("v",))
    graph = build_graph((*LOOP, value), ["x"], ["eval_x"])
    assert edges(graph, "order") == {("eval", "train"): 1, ("value", "train"): 0}


def test_roles_that_nobody_trains_have_no_versions() -> None:
    graph = build_graph((GEN, REW), ["x"])
    assert changed_by(graph) == {} and not edges(graph, "version") and not edges(graph, "order")


def test_the_graph_is_independent_of_the_order_of_the_list() -> None:
    first = build_graph(ppo().calls, ["prompts"])
    for seed in range(20):
        calls = random.Random(seed).sample(ppo().calls, len(ppo().calls))
        again = build_graph(calls, ["prompts"])
        assert again == first
        assert topological_order(again) == topological_order(first)


def test_the_topological_order_respects_every_edge_within_a_step() -> None:
    graph = build_graph(LOOP, ["x"], ["eval_x"])
    order = topological_order(graph)
    assert sorted(order) == sorted(graph)
    for edge in graph.edges:
        assert edge.steps > 0 or order.index(edge.source) < order.index(edge.target)


def test_a_graph_survives_pickling() -> None:
    graph = build_graph(LOOP, ["x"], ["eval_x"])
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_calls_on_all_rows_drawn_come_before_the_choice() -> None:
    assert [call.name for call in LOOP if call.precedes_choice] == ["gen", "rew"]
    assert not replace(REW, rows="chosen").precedes_choice


BLEND = MFC("ema", "reference", "blend", (), blends="actor")


def test_a_blend_reads_what_its_step_has_made_and_is_read_by_the_next_step() -> None:
    judge = MFC("judge", "reference", "inference", ("y",), ("z",))
    shown = MFC("shown", "reference", "inference", ("eval_y",), ("eval_z",), dataset="eval")
    graph = build_graph((*LOOP, judge, BLEND, shown), ("x",), ("eval_x",))
    assert {edge for edge in graph.edges if "ema" in edge[:2] and edge.kind != "data"} == {
        Edge("train", "ema", "version", 0),
        Edge("ema", "train", "order", 1),
        Edge("ema", "judge", "version", 1),
        Edge("judge", "ema", "order", 0),
        Edge("ema", "shown", "version", 0),
        Edge("shown", "ema", "order", 1),
    }
    assert changed_by(graph) == {"actor": "train", "reference": "ema"}
    order = topological_order(graph)
    assert order.index("judge") < order.index("ema") and order.index("train") < order.index("ema")


REFUSED = [
    ("made of chosen rows only", (replace(GEN, rows="chosen"), REW), "rew works on all rows drawn, but gen makes key"),
    ("a call twice", (GEN, REW, GEN), "2 calls are named 'gen'.*rename"),
    ("two producers", (GEN, REW, replace(REW, name="rew2")), "key 'r' is made by rew and rew2.*output_remap"),
    (
        "a key of the data set made again",
        (GEN, replace(REW, outputs=("x",))),
        "'x' is made by rew, but comes from the data",
    ),
    ("nobody makes it", (replace(GEN, inputs=("xx",)),), "gen needs key 'xx'.*did you mean 'x'"),
    (
        "of other samples",
        (GEN, replace(EVAL, inputs=("eval_x", "y"))),
        "eval works on eval samples, but key 'y' is of train",
    ),
    ("a cycle", (replace(GEN, inputs=("x", "r")), REW), "gen → rew → gen wait for each other.*reads y of gen"),
    ("train with outputs", (GEN, REW, replace(TRAIN, outputs=("w",))), r"train is a train_step with outputs \['w'\]"),
    (
        "train on evaluation",
        (replace(TRAIN, inputs=("eval_x",), dataset="eval"),),
        "train is a train_step on evaluation",
    ),
    ("a role trained twice", (GEN, REW, TRAIN, replace(TRAIN, name="t2")), "t2 and train change role 'actor'"),
    ("a role trained and blended", (*LOOP[:3], replace(BLEND, role="actor")), "train change role 'actor'"),
    ("a blend with rows", (*LOOP[:3], replace(BLEND, inputs=("x",))), "ema is a blend with inputs"),
    (
        "a blend of what stays",
        (*LOOP[:3], replace(BLEND, blends="reward")),
        "ema.blends is 'reward', which no call trains",
    ),
    ("a blend on other rows", (*LOOP[:3], replace(BLEND, dataset="eval")), "ema is a blend on evaluation"),
    (
        "what blends is no blend",
        (*LOOP[:2], replace(TRAIN, blends="actor")),
        "train.blends is 'actor', but it is a train_step",
    ),
    ("a remap of nothing", (replace(GEN, input_remap={"q": "x"}),), "gen.input_remap renames 'q'"),
    ("a remap into nothing", (replace(GEN, output_remap={"y": "q"}),), "gen.output_remap gives 'q'"),
    ("inputs of one name", (GEN, replace(REW, inputs=("x", "y"), input_remap={"x": "y"})), "two inputs one name"),
    ("a lag of training", (GEN, REW, replace(TRAIN, lag=1)), "train.lag is 1, but a train_step"),
    ("a lag of evaluation", (*LOOP[:3], replace(EVAL, lag=1)), "eval.lag is 1, but"),
    (
        "a lag behind its input's",
        (GEN, MFC("value", "actor", "inference", ("y",), ("v",), lag=1), REW, TRAIN),
        "value.lag is 1, but it works on what gen makes, whose lag is 0",
    ),
    ("a greedy judge", (GEN, replace(REW, greedy=True)), "rew.greedy is true, but only generate draws"),
    ("a name for no file", (replace(GEN, name="gen/../x"),), "'gen/../x' becomes part of file names"),
]


@pytest.mark.parametrize(("calls", "says"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_graph_that_cannot_run_is_refused_with_call_key_and_remedy(calls: tuple[MFC, ...], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        build_graph(calls, ["x"], ["eval_x"])


def test_calls_that_are_further_behind_than_a_choice_are_told_with_both_lags() -> None:
    """Whatever they work on; and no others: reward and reference stay as they are."""
    calls = (
        replace(GEN, lag=1),
        REW,
        TRAIN,
        MFC("glance", "actor", "inference", ("x",), ("g",), lag=2),
        MFC("look", "actor", "inference", ("y",), ("l",), rows="chosen"),
        MFC("refer", "reference", "inference", ("x",), ("z",), lag=3),
        MFC("value", "critic", "inference", ("y",), ("v",), lag=1),
        MFC("learn_values", "critic", "train_step", ("v",)),
    )
    (told,) = lags_beyond_choice(build_graph(calls, ["x"]), "r")
    assert told.startswith("glance.lag is 2, but steps choose by 'r', for which they need gen, whose lag is 1: ")
    assert told.endswith("Raise gen.lag or lower glance.lag")
    assert not list(lags_beyond_choice(build_graph((replace(GEN, lag=2), *calls[1:]), ["x"]), "r"))
    by_data = build_graph([*calls, MFC("rate", "reward", "inference", ("x",), ("s",))], ["x"])
    assert not list(lags_beyond_choice(by_data, "s")), "who decides waits for no change"


def test_all_problems_are_reported_together() -> None:
    calls = (replace(GEN, inputs=("a",), lag=-1), replace(REW, inputs=("b",)), replace(REW, name="rew2", inputs=("x",)))
    with pytest.raises(ConfigurationError) as caught:
        build_graph(calls, ["x"], ["x"])
    text = str(caught.value)
    assert len(caught.value.problems) == 5
    assert all(word in text for word in ("'a'", "'b'", "rew and rew2", "both data sets", "gen.lag is -1"))


def test_random_graphs_are_acyclic_within_a_step_or_refused() -> None:
    """Against a brute-force search for an order of the calls."""
    verdicts = {True: 0, False: 0}
    for seed in range(300):
        rng = random.Random(seed)
        keys = ["k0", "k1", "k2", "k3"]
        calls = [
            MFC(f"c{i}", f"role{i}", "inference", ("x", *rng.sample(keys, rng.randint(0, 2))), (keys[i],))
            for i in range(4)
        ]
        possible = any(
            all(
                set(mfc.inputs) <= {"x", *(key for before in order[:i] for key in before.outputs)}
                for i, mfc in enumerate(order)
            )
            for order in itertools.permutations(calls)
        )
        verdicts[possible] += 1
        try:
            build_graph(calls, ["x"])
        except ConfigurationError as error:
            assert not possible and "wait for each other" in str(error)
        else:
            assert possible
    assert min(verdicts.values()) > 30


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ((GEN, replace(REW, shown=("t",)), TRAIN), "rew.shown is ['t'], but it is no train_step"),
        ((GEN, REW, replace(TRAIN, shown=("r",))), "train shows 'r', which is a key of another call already"),
        ((GEN, replace(REW, inputs=("y", "t")), replace(TRAIN, shown=("t",))), "train shows 't', which is a key of"),
    ],
)
def test_what_is_shown_is_of_a_train_step_and_read_by_no_call(calls: tuple[MFC, ...], says: str) -> None:
    assert (
        build_graph((GEN, REW, replace(TRAIN, shown=("t",))), ["x"]).edges
        == build_graph((GEN, REW, TRAIN), ["x"]).edges
    )
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        build_graph(calls, ["x"])
