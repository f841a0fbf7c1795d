"""What each command does with its arguments. Runs themselves are tested where they are made."""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest
from support.commands import work_of
from support.experiments import ppo_values, write_config, write_inputs

import hpcrl.cli.draw
import hpcrl.cli.resume
import hpcrl.cli.stop
import hpcrl.launch.submit
from hpcrl.cli.main import main
from hpcrl.config.fields import settings
from hpcrl.config.load import OF_A_FORK, OF_A_RUN
from hpcrl.errors import DataError, ExitCode
from hpcrl.placement.plan import Plan, plan_for
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.ppo import PPOExperiment


@pytest.fixture
def config(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return str(write_config(tmp_path / "ppo.yaml", ppo_values()))


def test_plan_prints_calls_roles_workers_memory_and_the_run_directory(config, capsys, tmp_path):
    assert main(["plan", config, "--nodes", "2"]) == ExitCode.DONE
    text = capsys.readouterr().out
    for word in ("actor_gen", "critic_train", "d4t1p1", "reference", "MiB", "2 nodes of 2 workers"):
        assert word in text
    assert "A step is expected to take" in text and "rew_inf counts as 0 s" in " ".join(text.split())
    assert str(tmp_path / "runs" / "run-<time>") in text.replace("\n", "")


def test_plan_names_the_copy_that_makes_a_call(config, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["plan", config, "--actor.layout", "p2", "--calls", "{actor_gen: {layout: d2}}"]) == ExitCode.DONE
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["actor_gen", "actor@1", "generate"] in rows and ["actor_train", "actor", "train_step"] in rows


def test_plan_lists_the_files_of_a_folder_that_are_read(config, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "400")
    train = Path(ppo_values()["data"]["train"])
    assert main(["plan", config]) == ExitCode.DONE
    assert "data.train reads" not in capsys.readouterr().out
    for name in ("b.jsonl", "a/x.jsonl", ".hidden.jsonl"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(train, tmp_path / "set" / name)
    assert main(["plan", config, "--data.train", "set"]) == ExitCode.DONE
    assert f"data.train reads 2 files of {tmp_path}/set: a/x.jsonl, b.jsonl" in capsys.readouterr().out


def test_plan_as_json_holds_the_plan_itself(config, capsys):
    assert main(["plan", config, "--json"]) == ExitCode.DONE
    shown = json.loads(capsys.readouterr().out)
    plan = msgspec.convert(shown["plan"], Plan)
    assert plan == plan_for(experiment_from(plan.experiment), nodes=1)
    assert len(shown["memory_gib"]) == 2
    assert shown["expected_step"]["seconds"] > 0 and "measured on one thread" in shown["expected_step"]["source"]
    assert shown["fullest_calls"] == ["actor_train", "actor_train"] and shown["host_memory_gib"] == [0, 0]


def test_plan_says_what_waits_in_the_memory_of_a_gpus_host(config, capsys):
    words = ["plan", config, "--cluster.device", "cuda", "--actor.between.optimizer", "host"]
    assert main(words) == ExitCode.DONE
    text = capsys.readouterr().out
    assert "on its host" in text and "most in" in text and "critic_train" in text


def test_plan_comes_in_about_a_second(config):
    calls, modules = work_of("plan", config)
    assert calls < 1_200_000 and modules < 700, (calls, modules)


def test_plan_says_nothing_of_time_on_a_device_that_nobody_named_and_refuses_one_that_is_not_known(config, capsys):
    assert main(["plan", config, "--cluster.device", "cuda", "--json"]) == ExitCode.DONE
    assert "expected_step" not in json.loads(capsys.readouterr().out)
    assert main(["plan", config, "--cluster.device", "cuda", "--search.device", "H99"]) == ExitCode.CONFIGURATION
    assert "H99 is no GPU" in capsys.readouterr().err


def test_plan_makes_nothing(config, capsys):
    before = sorted(Path().rglob("*"))
    assert main(["plan", config]) == ExitCode.DONE
    assert sorted(Path().rglob("*")) == before


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder that is all of the PATH and of the environment's programs."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(hpcrl.cli.draw.sysconfig, "get_path", lambda name: str(folder))
    return folder


def put_program(folder, name, script):
    (folder / name).write_text(f"#!{shutil.which('sh', path=os.defpath)}\n{script}\n")
    (folder / name).chmod(0o755)


def test_draw_writes_the_text_for_graphviz_without_any_program(config, capsys, programs):
    assert main(["draw", config, "--out", "graph.dot"]) == ExitCode.DONE
    assert Path("graph.dot").read_text().startswith("digraph")
    assert capsys.readouterr().out == "graph.dot\n"


@pytest.mark.parametrize(("name", "start"), [("graph.svg", b"<?xml"), ("graph.png", b"\x89PNG")])
def test_draw_writes_a_picture(config, name, start):
    assert main(["draw", config, "--out", name]) == ExitCode.DONE
    assert Path(name).read_bytes().startswith(start)
    assert not Path("graph.dot").exists()


def test_a_drawn_svg_names_every_call(config):
    assert main(["draw", config, "--out", "graph.svg"]) == ExitCode.DONE
    text = " ".join(ElementTree.parse("graph.svg").getroot().itertext())
    for call in ("actor_gen", "rew_inf", "ref_inf", "critic_inf", "actor_train", "critic_train"):
        assert call in text


def texts_of_the_graph(config, *words):
    assert main(["draw", config, "--out", "graph.svg", *words]) == ExitCode.DONE
    texts = ElementTree.parse("graph.svg").iter("{http://www.w3.org/2000/svg}text")
    return [(text.text or "").replace("\xa0", " ") for text in texts]


def test_a_drawing_says_where_each_call_is_made_and_which_copies_are_moved_to(config):
    texts = texts_of_the_graph(
        config, "--actor.layout", "p2", "--critic.mesh", "1", "--calls", "{actor_gen: {layout: d2}}"
    )
    begin = texts.index("actor_gen")
    assert texts[begin : begin + 3] == ["actor_gen", "actor@1 · generate", "d2 on 0-1"]
    begin = texts.index("critic_train")
    assert texts[begin : begin + 3] == ["critic_train", "critic · train_step", "d1 on 1"]
    assert {"p2 on 0-1", "actor parameters to actor@1, next step"} <= set(texts)


def test_a_drawing_of_one_worker_speaks_of_no_place(config):
    assert not re.search(r"@| on \d", " ".join(texts_of_the_graph(config, "--cluster.workers_per_node", "1")))


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_dot_draws_where_there_is_one_and_else_the_port_does(config, programs, ending):
    put_program(programs, "graphviz-pure", "echo port $*")
    assert main(["draw", config, "--out", f"graph.{ending}"]) == ExitCode.DONE
    assert Path(f"graph.{ending}").read_text() == f"port -T{ending}\n"
    put_program(programs, "dot", "echo dot $*")
    assert main(["draw", config, "--out", f"graph.{ending}"]) == ExitCode.DONE
    assert Path(f"graph.{ending}").read_text() == f"dot -T{ending}\n"


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_without_a_program_draw_leaves_the_text_and_says_what_to_install(config, capsys, programs, ending):
    assert main(["draw", config, "--out", f"graph.{ending}"]) == ExitCode.CONFIGURATION
    error = capsys.readouterr().err
    for words in ("neither dot nor graphviz-pure", "apt install graphviz", "pip install 'hpcrl[draw]'", "in graph.dot"):
        assert words in error
    assert Path("graph.dot").read_text().startswith("digraph")
    assert not Path(f"graph.{ending}").exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('echo "Format pdf not recognized." >&2; exit 1', "dot says: Format pdf not recognized."),
        ("exit 3", "dot says: exit code 3."),
        ("exec /bin/sleep 30", "dot took more than 1 s."),
    ],
)
def test_a_program_that_fails_is_quoted_and_draw_leaves_the_text(config, capsys, monkeypatch, programs, script, said):
    monkeypatch.setattr(hpcrl.cli.draw, "DRAW_TIMEOUT_S", 1.0)
    put_program(programs, "dot", script)
    assert main(["draw", config, "--out", "graph.pdf"]) == ExitCode.CONFIGURATION
    assert said in capsys.readouterr().err
    assert Path("graph.dot").exists() and not Path("graph.pdf").exists()


def test_draw_takes_four_endings(config, capsys):
    assert main(["draw", config, "--out", "graph.gif"]) == ExitCode.CONFIGURATION
    assert "--out graph.gif must end in .dot, .svg, .png, .pdf." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["none/graph.svg", "none/graph.dot"])
def test_draw_names_a_file_that_cannot_be_written(config, capsys, name):
    assert main(["draw", config, "--out", name]) == ExitCode.CONFIGURATION
    assert f"{name} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["submit", "plan"])
def test_a_wrong_configuration_exits_64_with_all_problems_and_makes_nothing(config, capsys, command):
    before = sorted(Path().rglob("*"))
    words = [command, config, "--seed", "many", "--actor.layout", "d3", "--cluster.nods", "2"]
    assert main(words) == ExitCode.CONFIGURATION
    assert sorted(Path().rglob("*")) == before
    error = capsys.readouterr().err
    assert error.startswith("hpcrl: 3 problems, nothing was started.")
    for words in ("seed = many", "actor.layout = d3 needs", "The nearest is cluster.nodes"):
        assert words in error


@pytest.fixture
def calls(monkeypatch):
    """What the commands ask of hpcrl.launch, instead of doing it."""
    found = []

    def record(name):
        def called(*arguments):
            found.append((name, arguments))
            return int(ExitCode.REQUEUE)

        return called

    monkeypatch.setattr(hpcrl.launch.submit, "submit", record("submit"))
    monkeypatch.setattr(hpcrl.cli.resume, "resume", record("resume"))
    monkeypatch.setattr(hpcrl.cli.stop, "stop", record("stop"))
    for command in (hpcrl.cli.resume, hpcrl.cli.stop):
        monkeypatch.setattr(command, "find_run", Path)  # there is none
    return found


def test_submit_hands_over_the_experiment_and_returns_the_runs_exit_code(config, calls):
    assert main(["submit", config, "--run-dir", "here", "--detach", "--ppo.clip_low", "0.1"]) == ExitCode.REQUEUE
    ((name, (experiment, run_dir, wait)),) = calls
    assert (name, run_dir, wait) == ("submit", Path("here"), False)
    assert experiment.ppo.clip_low == 0.1


def test_submit_leaves_the_name_of_the_run_directory_to_the_launcher(config, calls):
    main(["submit", config])
    assert calls[0][1][1:] == (None, None)


def test_resume_and_stop_hand_over_the_run(calls):
    assert main(["resume", "RUN", "--detach", "--accept-changed", "data.train", "actor.path"]) == ExitCode.REQUEUE
    assert main(["stop", "RUN", "--now"]) == ExitCode.REQUEUE
    assert calls == [
        ("resume", (Path("RUN"), False, ("data.train", "actor.path"), [])),
        ("stop", (Path("RUN"), True)),
    ]


def test_resume_hands_over_the_settings_that_change(calls):
    assert main(["resume", "RUN", "--nodes", "2", "--actor.layout=d4", "--wait"]) == ExitCode.REQUEUE
    assert calls == [("resume", (Path("RUN"), True, (), ["cluster.nodes=2", "actor.layout=d4"]))]


@pytest.mark.parametrize(
    ("command", "free", "own"),
    [
        ("resume", OF_A_RUN, {"--dry-run", "--accept-changed"}),
        ("fork", OF_A_FORK, {"--dry-run", "--step", "--run-dir"}),
    ],
)
def test_the_help_lists_what_may_change_and_nothing_else(command, free, own, capsys):
    assert main([command, "--help", "--algorithm", "ppo"]) == ExitCode.DONE
    text = capsys.readouterr().out
    shown = {word for line in text.splitlines() if line.startswith("  --") for word in line.split()[:1]}
    changes = {f"--{setting.key}": setting.change for setting in settings(PPOExperiment)}
    listed = {option for option, change in changes.items() if change in free}
    assert listed | own == shown - {"--help", "--detach", "--wait"}
    assert {"--actor.mesh", "--cluster.slurm.time", "--actor.optimizer.lr", "--control.steps"} <= shown
    assert text.index("--cluster.slurm.time") < text.index("2. What it computes") < text.index("--ppo.clip_low")


def test_an_error_that_is_meant_for_the_user_is_printed_without_a_traceback(config, capsys, monkeypatch):
    def refuse(*_):
        raise DataError("row 3 of rows.jsonl has no prompt")

    monkeypatch.setattr(hpcrl.launch.submit, "submit", refuse)
    assert main(["submit", config]) == ExitCode.DATA
    assert capsys.readouterr().err == "hpcrl: row 3 of rows.jsonl has no prompt\n"


def test_output_into_a_pipe_that_closes_ends_quietly(config):
    command = f"{sys.executable} -m hpcrl.cli.main submit {config} --help | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("usage: hpcrl submit")
    assert done.stderr == ""
