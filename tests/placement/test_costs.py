"""How long calls last and what they need, against sums by hand; and that more work never costs less."""

from dataclasses import replace
from math import ceil, isclose
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from support.experiments import load_config, ppo_values, write_config, write_inputs, write_model

from hpcrl.config.environment import EnvironmentConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import BetweenConfig, LoraConfig, TrainedBetweenConfig
from hpcrl.families.config import DecoderConfig
from hpcrl.ops.search_chain import Scorer
from hpcrl.ops.search_problem import Stage
from hpcrl.placement.candidate import candidate_of
from hpcrl.placement.costs import CostModel, read_costs
from hpcrl.placement.data_sheets import CPU_CORE, rates_of_gpu
from hpcrl.placement.draws import Answer, drawn_by
from hpcrl.placement.exchanges import Party, gathered, party, scattered
from hpcrl.placement.layouts import Layout
from hpcrl.placement.lengths import spread_lengths
from hpcrl.placement.memory import estimate_models, parameters_held
from hpcrl.placement.model_costs import block_shape, head_shape
from hpcrl.placement.move_costs import MoveCosts
from hpcrl.placement.options import choices_of
from hpcrl.placement.placing import Placed
from hpcrl.placement.plan import ModelName, plan_for
from hpcrl.placement.rates import Fixed, Link, Links, Measured, Piece, Ran, Rates, Surface
from hpcrl.placement.shards import Cut
from hpcrl.placement.worker_memory import loads_of, peaks
from hpcrl.placement.workload import workload_of
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.simulation.durations import durations_of

GPU = rates_of_gpu("NVIDIA H100 80GB HBM3")
assert GPU is not None
LAYOUTS = [Layout(), Layout(dp=2), Layout(tp=2), Layout(pp=2), Layout(2, 2, 2)]
CALLS = ("actor_gen", "critic_inf", "actor_train")


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    write_inputs(tmp_path)
    write_model(tmp_path / "model", num_hidden_layers=4)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {
        "cluster": {"nodes": 2, "workers_per_node": 4},
        "actor": {"path": "model", "micro_batch_tokens": 64},
    }
    return load_config(write_config(tmp_path / "ppo.yaml", values))


def model_of(experiment: Any, rates: Rates = CPU_CORE, responses: float = 12, **measured: int) -> CostModel:
    lengths = spread_lengths((6, 2), (responses, responses / 2), (12, 100))
    return read_costs(experiment, rates, workload_of(experiment, lengths), measured)


def calls(experiment: Any) -> dict[str, Any]:
    return {call.name: call for call in algorithm_of(experiment).calls(experiment)}


def placed(layout: Layout, backend: str = "native", first: int = 0) -> Placed:
    return Placed(layout, tuple(range(first, first + layout.size)), backend)


def linear(experiment: Any) -> Rates:
    """All parts of the actor measured, each with numbers that are easily told apart."""
    config = read_costs(experiment, CPU_CORE, model_of(experiment).workload).models["actor"]
    of_block, of_head = block_shape(config), head_shape(config)

    def measured(part: Any, of: Any, shape: str, each: float, pair: float) -> Measured:
        points = [(x, y, 1000 + each * x + pair * x * (y + 1) / 2) for x in (1.0, 100.0) for y in (1.0, 50.0)]
        return Measured(Piece(part, of, shape, "native"), Surface.of(points))

    pieces = [
        measured("block", "taught", of_block, 10, 2),
        measured("block", "backward", of_block, 30, 5),
        measured("entry", "taught", of_head, 1, 0),
        measured("entry", "backward", of_head, 3, 0),
        measured("head", "taught", of_head, 100, 0),
        measured("head", "backward", of_head, 200, 0),
        measured("update", "taught", "", 0, 0),
        measured("block", "prefill", of_block, 12, 3),
        measured("block", "decode", of_block, 7, 4),
        measured("block", "generation", of_block, 0, 0),
        measured("entry", "generation", of_head, 0, 0),
        measured("block", "training", of_block, 0, 0),
        measured("entry", "training", of_head, 4000, 0),
        measured("entry", "prefill", of_head, 1, 0),
        measured("entry", "decode", of_head, 0, 0),
        measured("head", "decode", of_head, 50, 0),
    ]
    nothing = Link(0, 1e30)
    fields = {name: getattr(CPU_CORE, name) for name in CPU_CORE.__struct_fields__}
    near = Links(nothing, nothing)
    return Rates(**fields | {"measured": tuple(pieces), "fixed": Fixed(0, 0, 0, 77), "near": near, "far": near})


def test_a_train_step_is_the_sum_of_its_measured_passes_by_hand(experiment: Any) -> None:
    costs = model_of(experiment, linear(experiment))
    model, work = costs.models["actor"], costs.workload
    ends = costs_of_ends(model)
    expected = 0.0
    for parts in work.trained(1, 64):
        (part,) = parts
        for batch in range(len(part)):
            mine = part.batch_X == batch
            tokens, labels = int(part.lengths_X[mine].sum()), int(part.labels_M[batch])
            texts = zip(part.lengths_X[mine].tolist(), part.before_X[mine].tolist(), strict=True)
            pairs = sum(length * (length + 1) / 2 + length * before for length, before in texts)
            left = 1 - labels / tokens if labels < tokens else 0
            for each, pair in ((10, 2), (30, 5)):
                block, short = 1000 + each * tokens + pair * pairs, 1000 + each * tokens + pair * tokens
                expected += model.blocks * block - ends * left * short
            expected += 2000 + 4 * tokens + 2000 + 300 * labels
        expected += 1000 + 1000 * model.blocks + 5000  # an update, and what a minibatch takes once
    found = costs.call_nanoseconds(calls(experiment)["actor_train"], placed(Layout()))
    assert isclose(found, expected * work.passes + 77, abs_tol=1)


def test_a_generation_is_the_sum_of_its_measured_visits_by_hand(experiment: Any) -> None:
    few = replace(experiment, generation=replace(experiment.generation, slots=3))
    costs = model_of(few, linear(experiment))
    blocks, (part,) = costs.models["actor"].blocks, costs.workload.generated(1, 1, 3, 64)
    visits = (of[part.order_V] for of in (part.rows_V, part.tokens_V, part.pairs_V, part.context_V))
    expected = 1000 * blocks + 1000
    for rows, tokens, pairs, seen in zip(*visits, strict=True):
        block = 12 * tokens + 3 * pairs if tokens else 7 * rows + 4 * (seen + rows) / 2
        expected += blocks * (1000 + block) + 1000 + tokens + 1000 + 50 * rows
    found = costs.call_nanoseconds(calls(few)["actor_gen"], placed(Layout()))
    assert part.rounds > 20 and isclose(found, expected + 77, abs_tol=1)


def test_segments_cost_what_a_generation_at_once_does_and_their_prefills(experiment: Any) -> None:
    cut = replace(experiment, generation=replace(experiment.generation, slots=64, segment=4))
    whole, costs = model_of(replace(cut, generation=replace(cut.generation, segment=None))), model_of(cut)
    call, place = calls(cut)["actor_gen"], placed(Layout())
    segments = [each for each in plan_for(cut).calls if each.segment is not None and each.segment.of == "actor_gen"]
    assert len(segments) == cut.generation.segments > 3
    drawn = [costs.workload.generated(1, 1, 64, 10**6, drawn_by(each, cut, 1024))[0] for each in segments]
    at_once = costs.workload.generated(1, 1, 64, 10**6)[0]
    assert sum(int((it.rows_V * it.times_V).sum()) for it in drawn) == int((at_once.rows_V * at_once.times_V).sum())
    begun = costs.workload.responses[costs.workload.responses > 4]
    assert drawn[1].tokens_V.sum() == (costs.workload.prompts[costs.workload.responses > 4] + 4).sum() and len(begun)
    each = [costs.call_nanoseconds(of, place) for of in segments]
    assert costs.call_nanoseconds(call, place) == sum(each) > whole.call_nanoseconds(call, place)


def test_the_turns_of_a_chat_share_a_response(experiment: Any) -> None:
    once = replace(experiment, generation=replace(experiment.generation, slots=64))
    talks = replace(once, environment=EnvironmentConfig(function="tool.py:answer", max_turns=4))
    costs, place = model_of(talks), placed(Layout())
    turns = [call for call in calls(talks).values() if call.kind == "generate"]
    drawn = [costs.workload.generated(1, 1, 64, 10**6, drawn_by(each, talks, 1024))[0] for each in turns]
    assert [each.name for each in turns] == ["actor_gen", "actor_turn2_gen", "actor_turn3_gen", "actor_turn4_gen"]
    assert sum(int((it.rows_V * it.times_V).sum()) for it in drawn) == costs.workload.responses.sum()
    read = [int(it.tokens_V.sum()) for it in drawn]
    assert read == sorted(read) and read[-1] > costs.workload.prompts.sum()
    whole = model_of(once).call_nanoseconds(turns[0], place)
    assert whole < sum(costs.call_nanoseconds(each, place) for each in turns) < 2 * whole
    assert [it for it in costs.notices if "environment.max_turns = 4 turns had equal shares of a response" in it]


def test_a_judge_reads_each_response_and_draws_an_answer_of_its_own(experiment: Any) -> None:
    def judged(tokens: int) -> Any:
        judge = replace(
            experiment.judge,
            path="model",
            question="{response}" * 4,
            generation=GenerationConfig(max_new_tokens=tokens, slots=64),
        )
        component = replace(experiment.reward, function=None, components={"judged": {"role": "judge"}})
        return replace(experiment, judge=judge, reward=component)

    costs = model_of(judged(2))
    call, work, place = calls(costs.experiment)["judge_gen"], costs.workload, placed(Layout())
    asked = drawn_by(call, costs.experiment, 1024)
    assert asked == Answer(question=10, longest=1022, answer=2)
    (visits,) = work.generated(1, 1, 64, 10**6, asked)
    assert visits.tokens_V.sum() == work.tokens + 10 * work.samples and visits.rounds == 2
    short, long = (model_of(it).call_nanoseconds(call, place) for it in (costs.experiment, judged(64)))
    assert short < long / 5
    assert [it for it in costs.notices if "a question of 10 tokens and drew judge.generation.max_new_tokens = 2." in it]


def costs_of_ends(model: DecoderConfig) -> float:
    """Of a block's matrices, what comes after attention."""
    ends = model.query_size * model.hidden_size + 3 * model.hidden_size * model.intermediate_size
    return ends / (ends + model.hidden_size * (model.query_size + 2 * model.kv_size))


@pytest.mark.parametrize("rates", [CPU_CORE, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", CALLS)
def test_longer_responses_are_never_cheaper_and_times_are_whole_numbers(
    experiment: Any, rates: Rates, name: str
) -> None:
    call = calls(experiment)[name]
    for layout in LAYOUTS:
        found = [model_of(experiment, rates, it).call_nanoseconds(call, placed(layout)) for it in (4, 8, 16, 32, 64)]
        assert found == sorted(found) and all(isinstance(it, int) and it > 0 for it in found), (layout, found)


@pytest.mark.parametrize("name", CALLS)
def test_workers_on_several_nodes_are_never_faster_than_on_one(experiment: Any, name: str) -> None:
    costs, call = model_of(experiment), calls(experiment)[name]
    for layout in LAYOUTS[1:4]:
        apart = Placed(layout, (0, 4), "native")
        assert costs.call_nanoseconds(call, apart) >= costs.call_nanoseconds(call, placed(layout)), layout


def test_the_same_place_elsewhere_costs_the_same_and_is_not_reckoned_again(experiment: Any) -> None:
    costs, call = model_of(experiment), calls(experiment)["actor_train"]
    first = costs.call_nanoseconds(call, placed(Layout(tp=2)))
    made = len(costs._made)
    assert costs.call_nanoseconds(call, placed(Layout(tp=2), first=6)) == first and len(costs._made) == made


def test_calls_without_a_model_cost_what_was_measured_or_nothing_with_a_notice(experiment: Any) -> None:
    call = calls(experiment)["rew_inf"]
    unknown, known = model_of(experiment), model_of(experiment, rew_inf=1234)
    place = Placed(Layout(dp=2), (0, 1))
    assert (unknown.call_nanoseconds(call, place), known.call_nanoseconds(call, place)) == (0, 1234)
    assert any("rew_inf counts as 0 s" in notice for notice in unknown.notices)
    assert not any("rew_inf counts as 0 s" in notice for notice in known.notices)


@pytest.mark.parametrize(
    "settings", [{}, {"layout": "d2t2", "mesh": "0-3"}, {"layout": "p2t2", "mesh": "0-3"}, {"backend": "zero1"}]
)
def test_stages_have_the_bytes_that_a_plan_refuses_by(experiment: Any, settings: dict[str, str]) -> None:
    actor = replace(experiment.actor, **settings)
    laid = replace(experiment, actor=actor, reference=replace(experiment.reference, layout="d8"))
    plan, costs = plan_for(laid, 2), model_of(laid)
    models = estimate_models(plan, laid)
    for call in plan.calls:
        replica = plan.replica(call.name)
        found = costs.stages(call, Placed(replica.arrangement, replica.ranks, replica.backend))
        for rank in replica.ranks:
            load = {it.call: it for it in loads_of(plan, models, rank, "cpu")}[call.name]
            stage = found[replica.ranks.index(rank) // (replica.arrangement.dp * replica.arrangement.tp)]
            assert stage.passing == ceil(load.passing), call.name
            if call.changes or call.role == "reference":
                assert stage.lasting == ceil(dict(load.parts).get(str(replica.model), 0.0)), call.name
        assert all(isinstance(stage, Stage) for stage in found)


def test_what_a_profile_lacks_of_what_was_reckoned_is_named(experiment: Any) -> None:
    def told(lora: LoraConfig, layouts: list[Layout], scales: dict[str, float]) -> list[str]:
        adapted = replace(experiment, actor=replace(experiment.actor, lora=lora))
        rates = structs.replace(linear(experiment), ran=Ran(scales=scales))
        costs = model_of(adapted, rates)
        for layout in layouts:
            for name in ("actor_gen", "actor_train"):
                costs.call_nanoseconds(calls(adapted)[name], placed(layout))
        return [it for it in costs.notices if "profile lacks" in it]

    whole, lora, cut = LoraConfig(), LoraConfig(rank=4), [Layout(), Layout(tp=2), Layout(tp=4)]
    assert told(whole, cut[:1], {}) == []
    shape = block_shape(read_costs(experiment, CPU_CORE, model_of(experiment).workload).models["actor"])
    assert told(lora, cut[:1], {}) == [
        f"The profile lacks actor's train_step of blocks of shape {shape} r4 in native fp32 with tp = 1: that is "
        "reckoned from operations and bytes."
    ]
    assert told(lora, cut[:1], {"actor_train": 2.0}) == []
    assert [it.partition(f"{shape} in native fp32 with tp = ")[::2] for it in told(whole, cut, {})] == [
        (
            f"The profile lacks actor's {kind} of blocks of shape ",
            "2, 4: that is reckoned from operations and bytes.",
        )
        for kind in ("generate", "train_step")
    ]


HALF = {"layout": "d2t2", "mesh": "0-3"}
AWAY = {"between": TrainedBetweenConfig(parameters="host", gradients="drop", optimizer="host")}

DROPPED = {"between": TrainedBetweenConfig(gradients="drop")}
FSDP = {"backend": "fsdp", "offload": "parameters", "dtype": "bf16"}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    ("actor", "critic", "made"),
    [
        ({}, {}, {}),
        (HALF | AWAY, AWAY, {}),
        (HALF | AWAY, AWAY, {"actor_gen": {"layout": "p2d4", "mesh": "0-7"}, "critic_inf": {"mesh": "4"}}),
        ({"layout": "p2d4"}, DROPPED, {"actor_gen": {"layout": "d4", "mesh": "2-5"}}),
        (FSDP, {}, {"actor_gen": {"mesh": "0-3", "backend": "native"}}),
        (HALF | {"lora": LoraConfig(rank=4)}, {}, {"actor_gen": {"layout": "d8", "mesh": "0-7"}}),
    ],
    ids=["plain", "away", "away and moved", "stages", "offloaded", "adapters"],
)  # fmt: skip
def test_a_search_knows_as_much_of_each_worker_as_a_plan(experiment: Any, device: str, actor, critic, made) -> None:
    laid = replace(
        experiment,
        actor=replace(experiment.actor, **actor),
        critic=replace(experiment.critic, **critic),
        cluster=replace(experiment.cluster, device=device),
        calls=made,
    )
    candidate = candidate_of(laid, 2)
    choices = choices_of(laid, {}, model_of(laid), 1 << 40, [candidate])
    calls_of = [call.name for call in choices.calls]
    needs = Scorer(choices.problem).needs(choices.plan_of(candidate))
    plan = plan_for(laid, 2)
    expected = peaks(plan, estimate_models(plan, laid), device)
    assert [needs[rank].bytes for rank in range(8)] == pytest.approx([it.bytes for it in expected], abs=32)
    for rank, load in enumerate(expected):
        assert load.call.startswith("move to ") if needs[rank].moves else load.call == calls_of[needs[rank].call]


def test_what_waits_on_the_host_is_copied_for_the_calls_that_need_it(experiment: Any) -> None:
    waits = replace(experiment, actor=replace(experiment.actor, **HALF | AWAY))
    plan, costs = plan_for(waits, 2), model_of(waits, GPU)
    home = plan.home("actor")
    at = Placed(home.arrangement, home.ranks, home.backend)
    (memory,) = estimate_models(plan, waits)[home.model]
    link = costs.rates.host
    state = memory.parameters + memory.optimizer
    assert costs.waiting_nanoseconds("actor", "train_step", at) == round(2 * link.nanoseconds(state))
    assert costs.waiting_nanoseconds("actor", "generate", at) == round(link.nanoseconds(memory.parameters))
    assert costs.waiting_nanoseconds("actor", "move", at) == round(2 * link.nanoseconds(memory.parameters))
    assert costs.waiting_nanoseconds("critic", "train_step", at) == 0
    for made in ({}, {"actor_gen": {"layout": "d8", "mesh": "0-7"}}):
        steps = []
        for of in (
            replace(waits, calls=made),
            replace(experiment, actor=replace(experiment.actor, **HALF), calls=made),
        ):
            candidate = candidate_of(of, 2)
            choices = choices_of(of, {}, model_of(of, GPU), 1 << 40, [candidate])
            steps.append(Scorer(choices.problem)(choices.plan_of(candidate)).nanoseconds / choices.problem.measured)
        kinds = ("train_step", *(("move",) if made else ("generate",)))
        assert steps[0] - steps[1] == pytest.approx(
            sum(costs.waiting_nanoseconds("actor", kind, at) for kind in kinds), rel=0.01
        )


def test_a_frozen_model_on_its_host_is_copied_back_alike_in_a_search_and_a_simulation(experiment: Any) -> None:
    waits = replace(experiment, reference=replace(experiment.reference, between=BetweenConfig(parameters="host")))
    plan, costs, candidate = plan_for(waits, 2), model_of(waits, GPU), candidate_of(waits, 2)
    choices = choices_of(waits, {}, costs, 1 << 40, [candidate])
    number = [call.name for call in choices.calls].index("ref_inf")
    way = choices.ways[number][choices.plan_of(candidate)[number]]
    assert way.spot.between == "host" and durations_of(costs, plan).calls["ref_inf"] == way.nanoseconds
    home = plan.home("reference")
    at = Placed(home.arrangement, home.ranks, home.backend)
    call = plan.call("ref_inf")
    assert way.nanoseconds == costs.call_nanoseconds(call, at) + costs.release_nanoseconds("reference", at)


def test_of_a_trained_model_that_waits_on_its_host_a_simulation_knows_too(experiment: Any) -> None:
    waits = replace(
        experiment,
        actor=replace(experiment.actor, **HALF | AWAY),
        calls={"actor_gen": {"layout": "d8", "mesh": "0-7"}},
    )
    plan, costs = plan_for(waits, 2), model_of(waits, GPU)
    home = plan.home("actor")
    at, copy = Placed(home.arrangement, home.ranks, home.backend), ModelName("actor", 1)
    found, plain = (durations_of(model_of(it, GPU), plan) for it in (waits, replace(waits, actor=experiment.actor)))
    more = {name: found.calls[name] - plain.calls[name] for name in plan.changes}
    assert more == {"actor_train": costs.waiting_nanoseconds("actor", "train_step", at), "critic_train": 0}
    assert found.moves[copy] - plain.moves[copy] == costs.waiting_nanoseconds("actor", "move", at) > 0


def test_what_a_server_generates_is_said_where_the_call_is_made(experiment: Any) -> None:
    served = replace(experiment, calls={"actor_gen": {"layout": "d8", "backend": "vllm", "python": "python"}})
    assert "actor_gen counts as if hpcrl's own code generated, not its server." in model_of(served).notices
    assert not any("its server" in notice for notice in model_of(experiment).notices)


def test_micro_batches_of_fewer_tokens_need_less_memory_and_more_time(experiment: Any) -> None:
    costs, call = model_of(experiment), calls(experiment)["actor_train"]
    small, large = (costs.stages(call, placed(Layout()), tokens)[0] for tokens in (32, 64))
    assert small.passing < large.passing and small.lasting == large.lasting
    fast, slow = (costs.call_nanoseconds(call, placed(Layout()), tokens) for tokens in (64, 16))
    assert slow > fast


def test_a_party_knows_how_many_are_on_a_node_and_sums_are_made_there_first() -> None:
    assert party(Layout(tp=4), (0, 1, 2, 3), "tp", 4) == Party(4, 4)
    assert party(Layout(dp=4), (2, 3, 4, 5), "dp", 4) == Party(4, 2, 2)
    near, far = Party(4, 4), Party(4, 2, 2)
    assert gathered(near, 1e6, CPU_CORE) < gathered(far, 1e6, CPU_CORE)
    assert scattered(far, 1e6, CPU_CORE) > scattered(near, 1e6, CPU_CORE)
    assert gathered(Party(1, 1), 1e6, CPU_CORE) == 0


MOVED = [
    (Placed(Layout(dp=4), (0, 1, 2, 3), "native"), Placed(Layout(tp=4), (0, 1, 2, 3), "native")),
    (Placed(Layout(tp=4), (0, 1, 2, 3), "native"), Placed(Layout(tp=4), (4, 5, 6, 7), "native")),
    (Placed(Layout(pp=4), (0, 1, 2, 3), "native"), Placed(Layout(dp=8), tuple(range(8)), "native")),
    (Placed(Layout(2, 2, 2), tuple(range(8)), "native"), Placed(Layout(dp=2, tp=4), tuple(range(8)), "native")),
    (Placed(Layout(tp=2, pp=2), (0, 1, 2, 3), "native"), Placed(Layout(dp=2, pp=2), (2, 3, 4, 5), "native")),
    (Placed(Layout(dp=2), (0, 1), "native"), Placed(Layout(dp=2), (1, 2), "native")),
]
LARGE = DecoderConfig(
    family="qwen2", vocabulary_size=4096, hidden_size=2048, intermediate_size=8192, blocks=24, heads=16, kv_heads=8,
    head_dim=128, max_positions=1024,
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(MOVED)))
def test_the_fast_way_to_reckon_moves_agrees_with_the_planners_transfers(number: int) -> None:
    home, place = MOVED[number]
    moved = MoveCosts(LARGE, 4, 4, CPU_CORE)
    exact, fast = moved.nanoseconds(home, place), int(moved.matrix([home], [place])[0, 0])
    assert exact > 0 and abs(fast / exact - 1) < 0.05, (exact, fast)


def test_what_goes_one_way_takes_as_long_as_messages_that_nothing_comes_to_meet() -> None:
    free, send = Link(0, 1e30), Link(0, 1e9)
    moved = [
        MoveCosts(LARGE, 4, 4, structs.replace(CPU_CORE, near=Links(free, send, alone), copied_per_s=1e30))
        for alone in (None, Link(0, 2e9))
    ]
    whole, halves = (
        Placed(Layout(), (0,), "native"),
        [Placed(it, (0, 1), "native") for it in (Layout(tp=2), Layout(pp=2))],
    )
    away, met = ([costs.nanoseconds(*pair) for costs in moved] for pair in ((whole, halves[0]), halves))
    assert away[0] > 0 and away[1] == pytest.approx(away[0] / 2, rel=1e-6)
    assert met[0] > 0 and met[1] == pytest.approx(met[0], rel=0.1), "of what is exchanged little goes one way"


def test_what_moves_in_one_run_is_not_packed() -> None:
    free = Link(0, 1e30)
    moved = MoveCosts(LARGE, 4, 4, structs.replace(CPU_CORE, near=Links(free, free), copied_per_s=1e9))
    whole, stages, cut = (Placed(it, tuple(range(it.size)), "native") for it in (Layout(), Layout(pp=2), Layout(tp=2)))
    own = parameters_held(LARGE, Cut(0, 1, 0, 2)) * 4
    for reckon in (moved.nanoseconds, lambda *of: int(moved.matrix(*([it] for it in of))[0, 0])):
        assert reckon(whole, stages) == pytest.approx(own, rel=0.02), "a worker copies its own half, and no more"
        assert reckon(whole, cut) > 1.2 * own


def test_a_matrix_of_moves_has_nothing_where_a_call_is_at_home_and_reckons_each_pair_once() -> None:
    moved = MoveCosts(LARGE, 4, 4, CPU_CORE)
    layouts = (Layout(dp=4), Layout(tp=4))
    places = [Placed(layout, tuple(range(at, at + 4)), "native") for layout in layouts for at in range(0, 128, 4)]
    found = moved.matrix(places, places)
    assert found.dtype == np.int64 and (np.diag(found) == 0).all() and (found >= 0).all()
    assert len(moved._made) <= 10
    assert found[0, 5] == found[0, 9] == found[3, 20] > 0
