"""What `resume` says of other settings, and which it refuses because they do not fit what a run has recorded."""

import dataclasses
from pathlib import Path

import pytest
from support.chaos import create_run, patient_experiment, remains
from support.elastic import finish_on
from support.hosts import write_task
from support.serving import stand_in_python

from hpcrl.cli.main import main
from hpcrl.config.changes import with_settings
from hpcrl.config.control import Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.plots import plot
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.views.status import read_status
from hpcrl.launch.next_settings import next_settings
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.recipes.reward_model import RewardModelConfig, RewardModelExperiment


def toy(steps: int):
    return patient_experiment(steps=steps, type="local")


def ppo_run(folder: Path) -> RunDirectory:
    write_task(folder)
    with open(folder / "rows.jsonl", "a") as rows:
        rows.write('{"prompt": "1+1=1+1=1+1=", "answer": "# 2"}\n')
    model = TrainedModelConfig(path=str(folder / "model"), optimizer=OptimizerConfig(schedule="cosine"))
    experiment = PPOExperiment(
        control=toy(4).control,
        cluster=toy(4).cluster,
        data=DataConfig(train=str(folder / "rows.jsonl"), evaluate=str(folder / "held_out.jsonl"), batch_size=4),
        actor=model,
        critic=CriticConfig(path=model.path),
        reference=ReferenceConfig(path=model.path),
        reward=RewardConfig(function="exact"),
        generation=GenerationConfig(max_new_tokens=6),
        ppo=PPOConfig(kl=KLConfig(mode="reward")),
    )
    return create_run(folder / "run", experiment)


def refusal(run: RunDirectory, *overrides: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        next_settings(run, overrides)
    return str(refused.value)


@pytest.mark.slow
def test_a_done_run_is_extended_by_its_length_and_by_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = create_run(tmp_path / "run", toy(2))
    finish_on(run, toy(2))
    assert main(["resume", str(run.root)]) == ExitCode.DONE
    assert f"`hpcrl resume {run.root} --control.steps N` extends it." in capsys.readouterr().out
    for words in (["--control.steps", "1"], ["--toy.lr", "0.1"], ["--nodes", "2"]):
        for dry in ([], ["--dry-run"]):
            assert main(["resume", str(run.root), *words, *dry]) == ExitCode.CONFIGURATION
            said = capsys.readouterr().err
            assert (
                "is done: step 2 was the last. To extend it, raise control.steps above 2, or change control.stop_when"
                in said
            )
    assert run.versions() == [0]
    longer = ["resume", str(run.root), "--control.steps", "3", "--toy.lr", "0.1"]
    assert main([*longer, "--dry-run"]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert "with control.steps = 3 (was 2), from new calls on" in said
    assert "with toy.lr = 0.1 (was 0.05), from new calls on" in said
    assert "runs what is new under settings version 1" in said and run.versions() == [0]
    assert main(longer) == ExitCode.DONE
    rows = remains(run).metrics
    assert [(row["step"], row["settings"]) for row in rows] == [(0, 0), (1, 0), (2, 0), (3, 1)]
    assert "settings 1 since step 3" in status_text(read_status(run.root))
    assert "<!-- settings 1 -->" in plot(run)["curves.svg"].decode()


def test_a_run_that_epochs_bound_is_extended_by_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More steps alone would not make it longer."""
    experiment = toy(2)
    control = dataclasses.replace(experiment.control, steps=None, epochs=1)
    experiment = dataclasses.replace(experiment, control=control)
    run = create_run(tmp_path / "run", experiment)
    finish_on(run, experiment)
    assert main(["resume", str(run.root)]) == ExitCode.DONE
    assert f"`hpcrl resume {run.root} --control.epochs N` extends it." in capsys.readouterr().out
    assert main(["resume", str(run.root), "--toy.lr", "0.1"]) == ExitCode.CONFIGURATION
    assert "To extend it, raise control.epochs, or change control.stop_when" in capsys.readouterr().err
    assert main(["resume", str(run.root), "--control.epochs", "2", "--dry-run"]) == ExitCode.DONE


def test_an_extension_that_was_killed_before_it_began_is_begun_by_a_plain_resume(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy(2))
    finish_on(run, toy(2))
    longer = next_settings(run, ["control.steps=3"])
    run.submit_settings("cut-off", run.add_settings(longer.written(run.read_settings(0).experiment)))
    run.record_submission("cut-off", {})
    assert f"hpcrl resume {run.root}" in status_text(read_status(run.root))
    assert main(["resume", str(run.root)]) == ExitCode.DONE
    assert [row["step"] for row in remains(run).metrics] == [0, 1, 2, 3]
    assert read_status(run.root).state == "done"


def test_evaluation_becomes_rare_but_is_not_switched_off(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy(4))
    said = refusal(run, "control.evaluate.steps=null")
    assert "control.evaluate cannot be switched off" in said and "Make it rare with control.evaluate.steps" in said
    assert next_settings(run, ["control.evaluate.steps=1000"]).after.control.evaluate == Frequency(steps=1000)


def test_numbers_that_would_leave_out_rows_are_refused(tmp_path: Path) -> None:
    run = ppo_run(tmp_path)
    said = refusal(run, "generation.max_new_tokens=56", "actor.optimizer.lr=1e-4")
    assert (
        "generation.max_new_tokens as given the run would have 12 rows" in said
        and "Set what you change so that the rows stay" in said
    )
    kept = next_settings(run, ["generation.max_new_tokens=9", "actor.optimizer.lr=1e-4"]).after
    assert (kept.generation.max_new_tokens, kept.actor.optimizer.lr) == (9, 1e-4)


def test_a_first_value_that_is_past_is_told_of_and_others_are_not(tmp_path: Path) -> None:
    run = ppo_run(tmp_path)
    steered = with_settings(run.read_run().experiment, {"ppo.kl.adaptive": True})
    changes = {
        root: [line for line in next_settings(of, ["ppo.kl.coef=0.5", "ppo.clip_low=0.1"]).describe() if "ppo" in line]
        for root, of in (("plain", run), ("steered", create_run(tmp_path / "steered", experiment_from(steered))))
    }
    clip, coef = "with ppo.clip_low = 0.1 (was 0.2), from new calls on", "with ppo.kl.coef = 0.5 (was 0.001), "
    past = "without effect: it is the first value of an adaptive weight, which goes on from its recorded value"
    assert sorted(changes["plain"]) == [clip, f"{coef}from new calls on"]
    assert sorted(changes["steered"]) == [clip, f"{coef}{past}"]


def test_numbers_that_would_make_other_calls_are_refused(tmp_path: Path) -> None:
    run = ppo_run(tmp_path)
    said = refusal(run, "ppo.kl.coef=0", "ppo.clip_low=0.1")
    assert "with ppo.kl.coef as given the steps of the run would have other calls (ref_inf" in said
    assert "Set what you change so that the calls stay" in said
    served = f"calls={{actor_gen: {{backend: vllm, python: {stand_in_python(tmp_path)}}}}}"
    short = experiment_from(with_settings(run.read_run().experiment, {"data.max_prompt_tokens": 8}))
    said = refusal(create_run(tmp_path / "short", short), served, "actor.micro_batch_tokens=512")
    assert "with calls as given the steps of the run would have other calls" in said
    assert next_settings(run, ["ppo.kl.coef=0.5", "ppo.clip_low=0.1"]).after.ppo.kl.coef == 0.5
    said = refusal(run, "generation.segment=4")
    assert "with generation.segment as given the steps of the run would have other calls (actor_gen, eval" in said


def test_rates_that_follow_the_length_of_the_run_are_told_of(tmp_path: Path) -> None:
    run = ppo_run(tmp_path)
    notices = [line for line in next_settings(run, ["control.steps=9"]).describe() if "schedule" in line]
    assert len(notices) == 1
    assert notices[0].startswith("actor.optimizer.schedule = cosine follows the length of the run: steps so far had")
    assert not any("schedule" in line for line in next_settings(run, ["ppo.clip_low=0.1"]).describe())
    assert dataclasses.replace(next_settings(run, []).after) == next_settings(run, []).before


def test_a_head_that_the_other_code_has_not_keeps_the_code_that_it_has(tmp_path: Path) -> None:
    """That of transformers' class has a bias; what both have alike may change."""
    write_task(tmp_path)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n' * 8)
    model = RewardModelConfig(path=str(tmp_path / "model"))
    made = RewardModelExperiment(
        control=toy(4).control,
        cluster=toy(4).cluster,
        data=DataConfig(train=str(pairs), evaluate=str(pairs), batch_size=4),
        reward_model=model,
    )
    (tmp_path / "ppo").mkdir()
    run = create_run(tmp_path / "run", made)
    said = refusal(run, "reward_model.model=transformers")
    assert said.endswith(
        "reward_model.model = transformers (was auto) would have other parameters than reward_model has been trained "
        "with: only one of the two has a tensor score.bias of this shape. Leave reward_model.model as it was, or "
        "submit a new run."
    )
    assert next_settings(run, ["reward_model.model=own"]).changes
    assert next_settings(ppo_run(tmp_path / "ppo"), ["critic.model=transformers"]).changes
