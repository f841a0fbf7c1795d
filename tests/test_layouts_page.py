"""docs/layouts.md: its meshes, settings, placements and figures are those of hpcrl."""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.experiments import QWEN2_TINY, load_config, ppo_values, write_config, write_inputs, write_model
from support.seven_billion import QWEN_7B

from hpcrl.backends import native
from hpcrl.cli.main import main
from hpcrl.errors import ExitCode
from hpcrl.families.reader import config_from_json
from hpcrl.placement.allocate import allocate
from hpcrl.placement.candidate import settings_with
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.layouts import mesh_text, parse_layout, parse_mesh
from hpcrl.placement.memory import estimate_models
from hpcrl.placement.movements import Movements
from hpcrl.placement.plan import plan_for

PAGE = (Path(__file__).parent.parent / "docs" / "layouts.md").read_text(encoding="utf-8")
(SETTINGS,) = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("|")]
HALF_BILLION = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
SEVEN_BILLION = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
ROLES = ("actor", "critic", "reference")
COMMANDS = [shlex.split(line) for line in PAGE.splitlines() if line.startswith("hpcrl plan ")]
SHOWN = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """PPO in bf16 on a backend that splits over all axes."""
    monkeypatch.setattr(native, "BACKEND", replace(native.BACKEND, axes=("dp", "tp", "pp")))
    write_inputs(tmp_path)
    sizes = HALF_BILLION | {"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768}
    write_model(tmp_path / "model", **sizes)
    monkeypatch.chdir(tmp_path)

    def loaded(nodes, slots, **changes):
        values = ppo_values() | {"cluster": {"nodes": nodes, "workers_per_node": slots}}
        values["data"] |= {"batch_size": 64}
        for role in ROLES:
            values[role] |= {"dtype": "bf16"} | changes.pop(role, {})
        return load_config(write_config(tmp_path / "c.yaml", values | changes), (), ALL_CHECKS)

    return loaded


def test_a_mesh_is_as_the_page_says():
    meshes = [
        (mesh.strip("`"), workers) for mesh, workers in (row for row in ROWS if len(row) == 2) if workers[:1].isdigit()
    ]
    assert len(meshes) == 8
    for mesh, workers in meshes:
        assert mesh_text(parse_mesh(None if mesh == "(left out)" else mesh, 2, 4)) == workers
    assert parse_layout("p2d4") == parse_layout("d4t1p2")
    quoted = [yaml.safe_load(it)["mesh"] for it in re.findall(r"`({mesh: .*?})`", PAGE)]
    assert quoted == ["node[0-1]", "0,2-3"] and {*quoted} < {mesh for mesh, _ in meshes}


def test_the_example_is_planned_in_the_words_of_the_page(load):
    experiment = load(1, 4, **SETTINGS)
    plan = plan_for(experiment, 1)
    told = Movements(plan, experiment, estimate_models(plan, experiment))
    quoted = re.findall(r"^    (\S.*)$", PAGE, re.MULTILINE)
    assert quoted == [next(told.holds(2)), *told.around(2)]


@pytest.mark.parametrize(("column", "nodes"), [(1, 1), (2, 2)])
def test_the_heuristic_places_as_the_page_says(load, column, nodes):
    model = config_from_json(
        QWEN2_TINY | SEVEN_BILLION | {"num_key_value_heads": 32, "vocab_size": 32000}, "config.json"
    )
    experiment = load(nodes, 8, allocation="heuristic")
    settled = settings_with(experiment, allocate(experiment, dict.fromkeys(ROLES, model)))
    plan = plan_for(settled, nodes)
    told = {row[0]: row[column] for row in ROWS if len(row) == 3 and row[0].strip("`") in (*ROLES, "actor_gen")}
    assert len(told) == 4
    for cell, words in told.items():
        name = cell.strip("`")
        at = plan.home(name) if name in ROLES else plan.replica(name)
        on = "all" if len(at.ranks) == 8 * nodes else mesh_text(at.ranks)
        assert words == f"`{at.layout}` on {on}"


def test_every_allocation_of_the_page_is_one(load):
    names = [row[0].strip("`") for row in ROWS if len(row) == 2 and row[0].startswith("`") and not row[1][:1].isdigit()]
    assert names == ["manual", "d4t2p1", "pipe_data", "pipe_model", "heuristic", "search"]
    for name in names:
        assert load(1, 8, allocation=name).allocation == name


@pytest.fixture
def seven_billion(tmp_path, monkeypatch):
    """Where the page's commands are typed: with Qwen2.5-7B's shape, and rows enough."""
    write_inputs(tmp_path)
    folder = write_model(tmp_path / "models/Qwen2.5-7B", **QWEN_7B)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "model" / name, folder)
    rows = tmp_path / "data/gsm8k/train.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text((tmp_path / "rows.jsonl").read_text() * 16)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "130")


@pytest.mark.parametrize("number", [0, 1])
def test_the_commands_of_the_example_print_what_the_page_shows(seven_billion, capsys, number):
    assert len(COMMANDS) == 2
    assert main(COMMANDS[number][1:]) == ExitCode.DONE
    said = capsys.readouterr()
    assert said.err == ""
    printed = [line.rstrip() for line in said.out.splitlines()]
    shown = [line for line in SHOWN[number].splitlines() if line != "…"]
    assert len(shown) > 1 and [line for line in shown if line not in printed] == []


def test_the_example_is_refused_where_too_much_waits_on_hosts_and_doubted_where_a_gpu_is_too_small(
    seven_billion, capsys
):
    assert main([*COMMANDS[1][1:], "--cluster.slurm.memory", "128G"]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err.split() == SHOWN[2].split()
    assert main([*COMMANDS[0][1:], "--cluster.slurm.gpu_type", "a100-40g"]) == ExitCode.DONE
    assert "a GPU of type a100-40g has at most 40.0 GiB" in capsys.readouterr().err


def test_the_calls_of_the_example_are_placed_as_the_page_says():
    experiment = load_config(EXAMPLES / "layouts/ppo-7b.yaml", checks=())
    plan = plan_for(experiment)
    rows = {row[0]: row[1:3] for row in ROWS if len(row) == 4}
    nodes = {"node 0": tuple(range(8)), "node 1": tuple(range(8, 16)), "both nodes": tuple(range(16))}
    for calls, (layout, on) in rows.items():
        for call in re.findall("`(.*?)`", calls):
            at = plan.replica(call)
            assert (f"`{at.arrangement.short}`", at.ranks) == (layout, nodes[on])
    placed = {call for calls in rows for call in re.findall("`(.*?)`", calls)}
    assert placed == plan.at.keys() - {"rew_inf"}


def test_the_run_to_try_moves_parameters_and_says_what_another_layout_would_change(tmp_path):
    (block,) = (it for it in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) if "toy.yaml" in it)
    submit, logs, resume = (shlex.split(line)[1:] for line in block.splitlines())
    (tmp_path / "examples").symlink_to(EXAMPLES)
    shown(tmp_path, *submit, "--control.steps", "4", "--control.checkpoint.steps", "2")
    (run,) = (tmp_path / "runs").iterdir()
    moves = shown(tmp_path, *(str(run) if word == "RUN" else word for word in logs)).splitlines()
    assert len(moves) >= 4 and all("executed" in line and "call=actor@1" in line for line in moves)
    changes = shown(tmp_path, *(str(run) if word == "RUN" else word for word in resume))
    assert "actor_gen, eval_gen: d4t1p1 → d2t1p1, equal to the bit" in changes.splitlines()


def shown(folder, *words):
    """What a command prints."""
    command = [sys.executable, "-m", "hpcrl.cli.main", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
