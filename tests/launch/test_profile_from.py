"""A profile out of what runs have measured: of runs whose workers' rates are known, it gives their calls' times."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.experiments import load_config, ppo_values, write_config, write_inputs, write_model

from hpcrl.config.experiment import to_dict
from hpcrl.costs import CallCost, Span, StepCost, encode
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.event_log import Entry
from hpcrl.event_log import encode as encode_event
from hpcrl.events import WorkersReady
from hpcrl.figures import Figures, Seconds, packed
from hpcrl.launch.calibrating import calibrated, payback, ran, refuse_another
from hpcrl.launch.profile_from import profile_from
from hpcrl.launch.profiling import profile_of
from hpcrl.placement.costs import CostModel, read_costs
from hpcrl.placement.data_sheets import CPU_CORE, rates_of_gpu
from hpcrl.placement.layouts import Layout
from hpcrl.placement.phase_costs import spent, updating
from hpcrl.placement.placing import Placed
from hpcrl.placement.plan import plan_for
from hpcrl.placement.profile_fit import Fit, Observed, fitted
from hpcrl.placement.rates import Curve, Fixed, Link, Rates
from hpcrl.placement.search_inputs import lengths_asked
from hpcrl.placement.workload import workload_of
from hpcrl.recipes.toy import ToyExperiment

STEPS = 12
CALLS = ("actor_gen", "ref_inf", "critic_inf", "actor_train", "critic_train")


def slower(rates: Rates, by: float = 2.5) -> Rates:
    """A device of which all is slower than its data sheet says, what small passes take most of all."""

    def curves(of: dict[str, Curve]) -> dict[str, Curve]:
        return {name: Curve(tuple((x, y / by) for x, y in curve.points)) for name, curve in of.items()}

    fixed = Fixed(*(round(by * getattr(rates.fixed, name)) for name in ("block_ns", "pass_ns", "round_ns")), 0)
    return msgspec.structs.replace(
        rates,
        products=curves(rates.products),
        attention=curves(rates.attention),
        bytes_per_s=rates.bytes_per_s / by,
        fixed=fixed,
        near=msgspec.structs.replace(
            rates.near, send=Link(rates.near.send.latency_ns, rates.near.send.bytes_per_s / 7)
        ),
    )


def _slower(link: Link, by: float) -> Link:
    return Link(round(link.latency_ns * by), link.bytes_per_s / by)


DEVICE = slower(CPU_CORE)
Make = Callable[..., RunDirectory]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A run on workers of these rates."""
    write_inputs(tmp_path)
    write_model(tmp_path / "model", num_hidden_layers=4, hidden_size=64, intermediate_size=128)
    write_model(tmp_path / "wide", num_hidden_layers=4, hidden_size=96, intermediate_size=128)
    monkeypatch.chdir(tmp_path)

    def made(
        name: str, rates: Rates = DEVICE, hardware: str = "Some CPU", layout: str = "d2", **values: Any
    ) -> RunDirectory:
        experiment = experiment_of(layout, **values)
        run = RunDirectory.create(
            tmp_path / name,
            experiment=to_dict(experiment),
            host="hpcrl.x:Y",
            key=KeyPair("public", "secret"),
            inputs={},
        )
        write(run, experiment, rates, hardware)
        return run

    return made


def experiment_of(layout: str, tokens: int = 64, model: str = "model", steps: int = STEPS, device: str = "cpu") -> Any:
    values = ppo_values() | {"cluster": {"nodes": 1, "workers_per_node": 2, "device": device}}
    values["data"] |= {"tokenizer": "model"}
    values["control"] = {"steps": steps}
    for role in ("actor", "critic", "reference"):
        values[role] = {"path": model, "layout": layout, "micro_batch_tokens": tokens}
    values["actor"] |= {"layout": "d1", "mesh": "0"}
    values["calls"] = {"actor_gen": {"layout": "d2", "mesh": "0-1"}, "critic_inf": {"layout": "t2"}}
    return load_config(write_config(Path("ppo.yaml"), values))


def costs_of(experiment: Any, rates: Rates, seed: int = 0) -> CostModel:
    return read_costs(experiment, rates, workload_of(experiment, lengths_asked(experiment), seed))


def ready(hardware: dict[str, int], **speeds: float) -> bytes:
    return encode_event(Entry(1.0, WorkersReady(2, hardware, speeds), 1.0))


def write(run: RunDirectory, experiment: Any, rates: Rates, hardware: str = "Some CPU") -> None:
    """What the master of such workers would have; each step has texts of its own."""
    plan, number = plan_for(experiment), run.claim_attempt("submission")
    run.plan(number).write_bytes(plan.to_json())
    run.events(number).write_bytes(ready({hardware: 2}))
    rows = []
    for step in range(1, STEPS + 1):
        costs = costs_of(experiment, rates, seed=step)
        calls = {name: cost_of(costs, plan, name) for name in CALLS}
        moved = moving(costs) / 1e9
        calls["actor@1"] = CallCost((Span(0, 0.0, moved, moved, 0),), 2 * moved)
        rows.append(encode(StepCost(float(step), step, float(step), 2.5, 8, calls, 0)))
    run.costs(number).write_bytes(b"".join(rows))


def moving(costs: CostModel) -> float:
    return float(
        costs.moves("actor", [Placed(Layout(), (0,), "native")], [Placed(Layout(dp=2), (0, 1), "native")])[0, 0]
    )


def cost_of(costs: CostModel, plan: Any, name: str) -> CallCost:
    call, at = plan.call(name), plan.replica(name)
    place = Placed(at.arrangement, at.ranks, at.backend)
    parts = spent(costs, call, place, plan.micro_batches.get(name, 0), 0)
    took: dict[Any, float] = {of: (it.work + it.fixed) / 1e9 for of, it in parts.items()}
    first = next(iter(parts.values()))
    seconds = {"forward": took.get("forward", 0.0) + took.get("taught", 0.0)}
    seconds |= {of: took.get(of, 0.0) for of in ("backward", "prefill", "decode")}
    whole = costs.call_nanoseconds(call, place, plan.micro_batches.get(name, 0)) / 1e9
    if call.kind == "train_step":
        seconds["optimizer"] = whole - sum(seconds.values())
        seconds["collective"] = seconds["optimizer"] - updating(costs, call, place) / 1e9
    counts = {"rounds" if call.kind == "generate" else "micro_batches": first.passes}
    figures = Figures(
        Seconds(execute=sum(seconds.values()) - seconds.get("collective", 0.0), **seconds),
        tokens=first.tokens,
        **counts,
    )
    span = Span(0, 0.0, whole, whole, 0)
    return CallCost((span,), whole, first.tokens, 0, packed(figures), packed(figures))


def times(experiment: Any, rates: Rates, layout: Layout, tokens: int) -> dict[str, float]:
    costs = costs_of(experiment, rates)
    place = Placed(layout, tuple(range(layout.size)), "native")
    return {name: float(costs.call_nanoseconds(plan_for(experiment).call(name), place, tokens)) for name in CALLS}


def test_it_gives_the_times_of_its_runs_calls_also_in_other_layouts_and_micro_batches(make: Make) -> None:
    found = profile_from([make("run")])
    assert found.rates.source == f"taken from run; parts of models in proportion as by {CPU_CORE.source}"
    assert found.rates.device == "cpu" and len(found.rates.measured) > 20
    experiment = experiment_of("d2")
    own = times(experiment, found.rates, Layout(dp=2), 64)
    assert own == pytest.approx(times(experiment, DEVICE, Layout(dp=2), 64), rel=0.05)
    for layout, tokens in ((Layout(dp=1), 64), (Layout(dp=2), 256), (Layout(dp=1), 24)):
        there = times(experiment, found.rates, layout, tokens)
        assert there == pytest.approx(times(experiment, DEVICE, layout, tokens), rel=0.1), (layout, tokens)
    assert moving(costs_of(experiment, found.rates)) == pytest.approx(moving(costs_of(experiment, DEVICE)), rel=0.02)
    off = times(experiment, CPU_CORE, Layout(dp=2), 64)
    assert off["actor_train"] < own["actor_train"] / 1.5


def test_whether_resuming_pays_is_told_by_how_far_steps_are_apart_and_how_many_are_left(make: Make) -> None:
    over, run, endless = make("over"), make("run", steps=STEPS + 1), make("long", steps=STEPS + 10**6)
    rates = calibrated(run, CPU_CORE)
    assert ran(run).step_s == 1.0
    none = payback(over, 0.0, 1, rates)
    assert none.pays is False and none.said.startswith("A step of over took 1 s (")
    assert none.said.endswith("; none are left.")
    assert payback(run, 1e6, 1, rates) == (payback(run, 1e6, 1, rates).said, False)
    assert payback(run, 1e6, 1, rates).said.endswith("is expected to take 1e+06 s: resuming with it gains nothing.")
    assert "one of plan 1 (on 3 nodes, not on 1) is expected to take" in payback(run, 1e6, 3, rates).said
    one, many = payback(run, 1e-9, 1, rates), payback(endless, 1e-9, 1, rates)
    own = float(one.said.partition("took 1 s (")[2].partition(" s as")[0])
    assert f"{own:.3g} s less" in one.said and 0 < own < 1, "a plan is held to what the run's own is reckoned to take"
    assert (one.pays, many.pays) == (own > ran(run).start_s, True)
    assert "1 is left: " in one.said and "1000000 are left: it saves about " in many.said


def test_attempts_that_had_other_plans_count_for_nothing(make: Make) -> None:
    run, other = make("run", layout="t2", rates=slower(CPU_CORE, 20.0)), experiment_of("d2")
    write(run, other, DEVICE)
    write(run, replace(other, control=replace(other.control, steps=99)), DEVICE)
    run.claim_attempt("submission")  # it closes no step
    measured, alone = ran(run), make("alone")
    assert (measured.seconds, measured.plan.replicas) == (ran(alone).seconds, plan_for(other).replicas)
    assert measured.steps == 2 * ran(alone).steps
    assert calibrated(run, CPU_CORE).ran.scales == calibrated(alone, CPU_CORE).ran.scales
    more = replace(other, data=replace(other.data, batch_size=16))
    write(run, more, DEVICE)
    assert ran(run).steps == ran(alone).steps and ran(run).seconds != ran(alone).seconds


def test_a_run_of_another_algorithm_or_of_other_models_is_compared_with_nothing(make: Make) -> None:
    run = make("run")
    refuse_another(run, experiment_of("d1", tokens=16))
    with pytest.raises(ConfigurationError, match="run is a run with models of other shapes: give --after one of"):
        refuse_another(run, experiment_of("d2", model="wide"))
    with pytest.raises(ConfigurationError, match="is a run of ppo, not of toy"):
        refuse_another(run, ToyExperiment())


def test_what_no_run_told_of_is_said_and_counts_as_by_the_base(make: Make) -> None:
    found = profile_from([make("run")], CPU_CORE)
    assert found.rates.far == CPU_CORE.far and found.rates.host == CPU_CORE.host
    assert found.lacks[0].startswith("moves between nodes, releases, exchanges between nodes: no run made any")
    exchange = found.rates.near.exchange
    assert exchange.bytes_per_s == pytest.approx(DEVICE.near.exchange.bytes_per_s, rel=0.1)
    assert exchange.latency_ns == pytest.approx(DEVICE.near.exchange.latency_ns, rel=0.1)


def test_runs_of_one_kind_make_a_profile_together_and_others_are_refused(make: Make, tmp_path: Path) -> None:
    first, fast = make("first"), make("second", rates=slower(CPU_CORE, 2.0))
    alone, both = (profile_from(runs).rates for runs in ([first], [first, fast]))
    times_of = [times(experiment_of("d2"), rates, Layout(), 64)["actor_train"] for rates in (alone, both)]
    assert times_of[1] == pytest.approx(0.9 * times_of[0], rel=0.05) and "taken from first, second;" in both.source
    for other, said in (
        (make("elsewhere", hardware="Another CPU"), "one computed on cpu Some CPU, the other on cpu Another CPU"),
        (make("larger", model="wide"), "one had models of qwen2 h64 q64 kv32 i128, h64 value"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            profile_from([first, other])
        assert "make no profile together" in str(refused.value)
        assert said in str(refused.value)
    assert profile_from([make("later", hardware="Another CPU")]).rates.device == "cpu"


def test_a_gpu_without_a_data_sheet_is_no_cpu(make: Make) -> None:
    run, new = make("run", device="auto"), "NVIDIA GeForce RTX 5090"
    run.events(0).write_bytes(ready({new: 2}))
    found = profile_from([run]).rates
    assert found.device == new and found.memory > CPU_CORE.memory
    run.events(0).write_bytes(ready({"Some CPU": 2}, fp32=1e9))
    found = profile_from([run]).rates
    assert found.device == "cpu" and found.memory == CPU_CORE.memory
    with pytest.raises(ConfigurationError, match=r"--profile is of NVIDIA GeForce RTX 5090, but .* on cpu Some CPU"):
        profile_from([run], msgspec.structs.replace(CPU_CORE, device=new))


def test_what_tells_nothing_is_refused_and_the_advice_leads_on(make: Make, tmp_path: Path) -> None:
    run = make("run")
    with pytest.raises(ConfigurationError, match=r"--profile is of H100, but .* computed on cpu Some CPU"):
        profile_from([run], rates_of_gpu("H100"))
    run.events(0).write_bytes(ready({"Some CPU": 1, "Another CPU": 1}))
    with pytest.raises(ConfigurationError, match="on several kinds of devices: Another CPU, Some CPU"):
        profile_from([run])
    measures = to_dict(profile_of(experiment_of("d2"), 1.0)[0])
    profile = RunDirectory.create(
        tmp_path / "p", experiment=measures, host="x:Y", key=KeyPair("public", "secret"), inputs={}
    )
    with pytest.raises(ConfigurationError, match="is a run of `hpcrl profile`, whose file is its profile"):
        profile_from([profile])
    run.events(0).write_bytes(ready({"Some CPU": 2}))
    assert profile_from([run]).rates.measured
    run.costs(0).write_bytes(b"")
    with pytest.raises(DataError, match="has closed no step"):
        profile_from([run])


@given(
    st.floats(0.2, 20),
    st.floats(0, 1e6),
    st.lists(st.tuples(st.floats(1e3, 1e7), st.integers(1, 40)), min_size=6, max_size=30),
)
def test_a_fit_is_exact_where_sizes_differ_and_a_ratio_where_they_do_not(
    factor: float, each: float, made: list[tuple[float, int]]
) -> None:
    found = [Observed(work, 0.0, passes, factor * work + each * passes) for work, passes in made]
    fit = fitted(found)
    if fit.each is None:
        ratios = [it.took / it.work for it in found]
        assert min(ratios) <= fit.factor <= max(ratios)
    else:
        assert fit.factor == pytest.approx(factor, rel=1e-3) and fit.each == pytest.approx(each, rel=1e-3, abs=1.0)


def test_a_disturbed_pass_counts_for_nothing() -> None:
    calm = [Observed(1e6, 0.0, 1, 2e6 + 1e4 * i) for i in range(9)]
    assert fitted([*calm, Observed(1e6, 0.0, 1, 9e6)]).factor == pytest.approx(2.04, abs=0.01)
    assert fitted(calm) == Fit(2.04)
