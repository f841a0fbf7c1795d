"""`hpcrl profile`: a run that measures, is stopped and resumed, and a file that a search holds to its models."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from support.experiments import values_of, write_config, write_inputs, write_model

from hpcrl.cli.main import main
from hpcrl.cli.settings import read_experiment
from hpcrl.config.experiment import to_dict
from hpcrl.config.yaml_file import read_yaml
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import DataError, ExitCode
from hpcrl.launch.calibrating import ran
from hpcrl.launch.next_settings import next_settings
from hpcrl.launch.profiling import profile_in, profile_of
from hpcrl.placement.data_sheets import CPU_CORE
from hpcrl.placement.profile_rates import differences, is_of_torch
from hpcrl.placement.profile_tasks import models_in
from hpcrl.placement.rates import Rates, rates_from_json
from hpcrl.placement.search_told import SearchTold

ROOT = Path(__file__).parent.parent
SHOWN = r"^hpcrl (profile [^-\s]\S* --out \S+)"
(README,), (PAGE,) = (
    re.findall(SHOWN, (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    for page in ("README.md", "docs/search.md")
)
PROFILE = [*README.replace("ppo", "grpo").split(), "--minutes", "0.02"]
RUN = Path("profile.json.run")
PATIENCE_S = 120.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    write_model(tmp_path / "model")
    write_model(tmp_path / "wide", hidden_size=64, intermediate_size=96)
    values = values_of("grpo")
    values["data"] |= {"train": "rows.jsonl", "tokenizer": "model"}
    values |= {role: {"path": "model"} for role in ("actor", "reference")}
    values["data"] |= {"max_prompt_tokens": 8}
    values["generation"] = {"max_new_tokens": 8, "slots": 4}
    values["actor"] |= {"micro_batch_tokens": 64}
    values["cluster"] = {"type": "local", "device": "cpu", "workers_per_node": 2}
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "grpo.yaml", values)
    write_config(tmp_path / "wide.yaml", values | {"actor": {"path": "wide"}, "reference": {"path": "wide"}})
    return tmp_path


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / RUN / "samples").rglob("step-*.h5"))}


def test_a_profile_that_was_stopped_measures_what_is_missing_and_a_search_takes_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert README == PAGE
    assert main([*PROFILE, "--detach"]) == ExitCode.DONE
    assert "Once the run has ended, the same command writes profile.json." in capsys.readouterr().err
    until = time.monotonic() + PATIENCE_S
    while len(kept(folder)) < 2:
        assert time.monotonic() < until, "nothing was measured"
        time.sleep(0.05)
    main(["stop", str(RUN), "--now"])
    first = kept(folder)
    assert not (folder / "profile.json").exists()
    with pytest.raises(DataError, match="of 8 things") as incomplete:
        profile_in(RunDirectory.open(RUN))
    assert f"hpcrl resume {RUN.absolute()}" in incomplete.value.advice[0]
    assert main(PROFILE) == ExitCode.DONE
    again, rates = kept(folder), rates_from_json((folder / "profile.json").read_bytes())
    assert {name: again[name] for name in first} == first and len(again) == 8
    held_to_its_shape(rates)
    capsys.readouterr()
    assert main(["search", "grpo.yaml", "--profile", "profile.json", "--proposals", "50"]) == ExitCode.DONE
    assert "measured by profile.json.run" in capsys.readouterr().out
    for others, differs in (("wide.yaml", "of other models"), ("grpo.yaml --nodes 2", "on other numbers")):
        assert main(["profile", *others.split(), "--out", "profile.json"]) == ExitCode.CONFIGURATION
        assert f"{RUN.absolute()} is not the run of this profile, but of one {differs}" in capsys.readouterr().err
    assert main(PROFILE) == ExitCode.DONE
    assert "extends it" not in capsys.readouterr().out
    written = (folder / "profile.json").read_bytes()
    (folder / "profile.json").unlink()
    assert main([*PROFILE, "--detach"]) == ExitCode.DONE  # the run has ended: it is time to write
    assert (folder / "profile.json").read_bytes() == written
    assert main(["search", "wide.yaml", "--profile", "profile.json", "--proposals", "50"]) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert "does not fit: actor has blocks of shape h64" in said and "Make one with `hpcrl profile`" in said


def held_to_its_shape(rates: Rates) -> None:
    parts = {(it.part, it.of, it.tp) for it in rates.pieces}
    assert {
        ("block", of, tp) for of in ("forward", "taught", "backward", "prefill", "decode") for tp in (1, 2)
    } <= parts
    assert rates.device == "cpu" and rates.software.startswith("torch ")
    assert rates.near.send.bytes_per_s > 0 and rates.disk.bytes_per_s > 0 and rates.fixed.call_ns > 0


def test_of_a_run_that_ended_early_it_is_said_what_becomes_of_the_profile(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcrl.cli.profile._measured", lambda *_: int(ExitCode.NEVER_REQUEUE))
    assert main(PROFILE) == ExitCode.NEVER_REQUEUE
    assert capsys.readouterr().err.endswith(
        "profile.json is not written. The same command resumes the run, and writes it.\n"
    )
    assert not (folder / "profile.json").exists()


def test_what_differs_is_named(folder: Path) -> None:
    experiment = read_experiment("grpo.yaml", [])
    assert list(differences(experiment, CPU_CORE, "9.9")) == []
    profile, left_out = profile_of(experiment, 1.0)
    assert left_out == [] and list(profile.measured.models) == ["actor"]
    assert profile.measured.tasks[:3] == ("node", "links", "predict/actor/1") and profile.control.steps == 8


def test_adapters_are_not_measured_as_if_all_were_trained_and_every_number_of_tensor_ranks_is(folder: Path) -> None:
    write_model(folder / "six", hidden_size=48, intermediate_size=96, num_attention_heads=6, num_key_value_heads=6)
    settings = [f"{role}.path=six" for role in ("actor", "reference")] + ["cluster.workers_per_node=6"]
    profile, left_out = profile_of(read_experiment("grpo.yaml", settings), 1.0)
    (model,) = models_in(profile.measured.models).values()
    assert model.tp == (1, 2, 3, 6) and model.trains and left_out == []
    profile, left_out = profile_of(read_experiment("grpo.yaml", [*settings, "actor.lora.rank=4"]), 1.0)
    assert not any(task.startswith("train") for task in profile.measured.tasks)
    assert left_out == ["actor.lora: training of adapters is not measured."]


def test_a_build_of_torch_is_compared_where_both_sides_name_it() -> None:
    assert is_of_torch("torch 2.11.0+cu130", "2.11.0") and is_of_torch("torch 2.11.0+cu130", "2.11.0+cu130")
    assert not is_of_torch("torch 2.11.0+cu130", "2.11.0+cpu") and not is_of_torch("torch 2.11.0", "2.13.0")


def test_a_number_of_minutes_that_is_none_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "grpo.yaml", "--out", "x.json", "--minutes", "0"]) == ExitCode.CONFIGURATION
    assert "--minutes 0 must be above 0" in capsys.readouterr().err
    assert not Path("x.json.run").exists()


def test_typed_again_with_other_minutes_it_measures_for_so_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, _ = profile_of(read_experiment("grpo.yaml", []), 1.0)
    run = RunDirectory.create(
        folder / RUN, experiment=to_dict(profile), host="x:Y", key=KeyPair("public", "secret"), inputs={}
    )
    asked: list[Sequence[str]] = []

    def resume(place: Path, wait: bool, overrides: Sequence[str]) -> int:
        asked.append(overrides)
        return int(ExitCode.NEVER_REQUEUE)

    monkeypatch.setattr("hpcrl.launch.submit.resume", resume)
    words = ["profile", "grpo.yaml", "--out", "profile.json"]
    for more in ([], ["--minutes", "1"], ["--minutes", "0.5"]):
        assert main([*words, *more]) == ExitCode.NEVER_REQUEUE
    assert [[str(it) for it in next_settings(run, words).changes] for words in asked] == [
        [],
        [],
        ["measured.minutes = 0.5 (was 1.0)"],
    ]


def test_after_a_run_a_search_counts_what_it_measured_and_says_whether_resuming_pays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(folder / "grpo.yaml", read_yaml(folder / "grpo.yaml") | {"allocation": "manual"})
    assert main(["submit", "grpo.yaml", "--run-dir", "run"]) == ExitCode.DONE
    measured = ran(RunDirectory.look(folder / "run"))
    capsys.readouterr()
    assert main(["search", "grpo.yaml", "--after", "run", "--proposals", "50", "--json"]) == ExitCode.DONE
    shown = capsys.readouterr()
    answer = msgspec.json.decode(shown.out, type=SearchTold)
    own = {it.call: it.seconds for plan in answer.others if plan.name == "the settings" for it in plan.calls}
    assert {call: own[call] for call in measured.seconds} == pytest.approx(measured.seconds, rel=0.01)
    assert own["rew_inf"] > 0 and any("rew_inf counts as" in it and "was measured" in it for it in answer.notices)
    assert "calibrated by run" in answer.rates and "A step of run took" in shown.err and measured.closed == 3
    assert answer.notices[0].endswith("; as in " + str(folder / "run") + ".") and "hpcrl resume" not in shown.err
    assert main(["search", "grpo.yaml", "--after", "run", "--nodes", "1-2"]) == ExitCode.CONFIGURATION
    assert "1-2 is a range, but --after compares" in (said := capsys.readouterr().err) and "as in --nodes 1." in said
    a_profile_comes_out_of_it(folder, measured.seconds, capsys)


def a_profile_comes_out_of_it(folder: Path, measured: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    """As the page says; its commands take it, and what is not its form is refused."""
    page = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    (words,) = re.findall(r"^hpcrl (profile --from .*)$", page, re.MULTILINE)
    assert main(words.replace("RUN", "run").split()) == ExitCode.DONE
    said = capsys.readouterr()
    assert "profile.json: cpu, " in said.out and "Search with: --profile profile.json" in said.out
    assert "no run made any" in said.err
    rates = rates_from_json((folder / "profile.json").read_bytes())
    held_to_its_shape(rates)
    assert (
        rates.ran.calls["rew_inf"] > 0
        and rates.ran.texts
        and rates.source.startswith("taken from run; parts of models in proportion as")
    )
    assert main(["search", "grpo.yaml", "--profile", "profile.json", "--proposals", "50", "--json"]) == ExitCode.DONE
    answer = msgspec.json.decode(capsys.readouterr().out, type=SearchTold)
    own = {it.call: it.seconds for plan in answer.others if plan.name == "the settings" for it in plan.calls}
    for call in ("actor_gen", "actor_train"):
        assert 0.5 < own[call] / measured[call] < 2, (call, own, measured)
    for command in ("simulate", "plan"):
        profile = {"simulate": "--profile"}.get(command, "--search.profile")
        assert main([command, "grpo.yaml", profile, "profile.json"]) == ExitCode.DONE
        assert "taken from run" in capsys.readouterr().out
    assert main(["search", "wide.yaml", "--profile", "profile.json", "--proposals", "50"]) == ExitCode.CONFIGURATION
    for refused, why in (
        (["profile", "grpo.yaml", "--from", "run", "--out", "x.json"], "--from takes its settings from the runs"),
        (["profile", "--from", "run", "--minutes", "3", "--out", "x.json"], "--from takes its settings from the runs"),
        (["profile", "grpo.yaml", "--profile", "profile.json", "--out", "x.json"], "--profile goes with --from"),
        (["profile", "--from", "run", "--profile", "grpo.yaml", "--out", "x.json"], "grpo.yaml is no profile: it is"),
    ):
        assert main(refused) == ExitCode.CONFIGURATION
        assert why in capsys.readouterr().err and not Path("x.json").exists()
