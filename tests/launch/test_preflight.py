"""What a run would end with once it reads its inputs is said before anything is started or made."""

import json
import re
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.commands import work_of
from support.experiments import ppo_values, values_of, write_config, write_inputs, write_model

from hpcrl.cli.main import main
from hpcrl.errors import ExitCode
from hpcrl.launch import preflight

COMMANDS = (["plan"], ["submit", "--dry-run"], ["submit"])
NORM = "model.norm.weight"


@pytest.fixture
def config(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return str(write_config(tmp_path / "ppo.yaml", ppo_values()))


def refusals(config, capsys, *overrides):
    """The exit code and the message of each command, which all are to be the same; and nothing was made."""
    found = []
    for command, *options in COMMANDS:
        code = main([command, config, *options, "--cluster", "local", *overrides])
        found.append((code, capsys.readouterr().err))
    assert len(set(found)) == 1
    assert not Path("runs").exists()
    return found[0]


def own_reward(text):
    Path("reward.py").write_text(text)
    return ["--reward.function", "reward.py:score"]


def test_a_configuration_whose_inputs_fit_is_planned(config):
    assert main(["plan", config]) == ExitCode.DONE


def test_every_tensor_that_does_not_fit_config_json_is_named(config, capsys):
    weights = Path("model/model.safetensors")
    tensors = load_file(weights)
    tensors[NORM] = np.zeros(7, np.float32)
    del tensors["model.layers.0.mlp.down_proj.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].astype(np.int8)
    tensors["visual.patch"] = np.zeros(1, np.float32)
    save_file(tensors, weights)
    code, said = refusals(config, capsys)
    assert code == ExitCode.DATA
    assert (
        f"actor.path: {weights.parent.absolute()} has tensors that its config.json does not account for: visual" in said
    )
    assert "has no tensor model.layers.0.mlp.down_proj.weight" in said
    assert f"{NORM} is [7]; config.json makes it [32]" in said
    assert "model.layers.0.mlp.up_proj.weight is stored as I8" in said
    assert "critic.path" not in said  # the same folder is told of once


def test_a_tied_model_with_an_output_matrix_of_its_own_is_refused(config, capsys):
    weights = Path("model/model.safetensors")
    tensors = load_file(weights)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, weights)
    code, said = refusals(config, capsys)
    assert code == ExitCode.DATA
    assert "tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight" in said


def test_a_head_that_cannot_be_made_up_is_refused(config, capsys):
    write_model(Path("judge"), architectures=["Qwen2ForSequenceClassification"], num_labels=1)
    code, said = refusals(config, capsys, "--reference.path", "judge")
    assert code == ExitCode.DATA and "reference.path: " in said and "one with a vocabulary head is needed" in said


def test_weights_that_are_a_pointer_of_git_lfs_are_refused(config, capsys):
    Path("model/model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    code, said = refusals(config, capsys)
    assert code == ExitCode.DATA and "git lfs pull" in said


def test_an_end_that_no_model_knows_is_refused(config, capsys):
    tokenizer = Path("model/tokenizer.json")
    known = json.loads(tokenizer.read_text())
    known["model"]["vocab"]["<end>"] = 64
    tokenizer.write_text(json.dumps(known))
    code, said = refusals(config, capsys)
    assert code == ExitCode.DATA and "ends a text with the token 64, but the models have vocab_size = 64" in said


def test_a_token_that_no_model_knows_is_found_in_whatever_row_it_is(config, capsys):
    tokenizer = Path("model/tokenizer.json")
    known = json.loads(tokenizer.read_text())
    known["model"]["vocab"]["?"] = 70
    tokenizer.write_text(json.dumps(known))
    assert main(["plan", config]) == ExitCode.DONE
    with Path("rows.jsonl").open("a") as rows:
        rows.write('{"prompt": "1+1"}\n' * 2000 + '{"prompt": "1+1=?"}\n')
    assert main(["plan", config, "--reward.function", "exact", "--reward.trial_rows", "0"]) == ExitCode.DATA
    assert "line 65: Object missing required field `answer`" in capsys.readouterr().err
    code, said = refusals(config, capsys, *own_reward("def score(prompt, response, row): return 0"))
    assert code == ExitCode.DATA and "row '2064' of data.train" in said and "has the token 70" in said


def test_a_tokenizer_that_ends_nothing_is_refused(config, capsys):
    Path("model/tokenizer_config.json").unlink()
    code, said = refusals(config, capsys)
    assert code == ExitCode.DATA and "names no token that ends a text" in said


def test_a_training_set_that_is_all_too_long_is_refused(config, capsys):
    code, said = refusals(config, capsys, "--data.max_prompt_tokens", "1")
    assert code == ExitCode.DATA and "longer than data.max_prompt_tokens = 1 tokens" in said


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            "import no_such_module\ndef score(*row): return 0\n",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("def scores(*row): return 0\nglobals()['scorer'] = scores\n", "cannot be called: .* has no function 'score'"),
        (
            "def score(response, record): return 0\n",
            "cannot be called: nothing fills its parameter 'record'; a parameter may be called prompt",
        ),
        ("def score(prompt, response, row): return row['solution']\n", "KeyError: 'solution'"),
        ("def score(prompt, response, row): return [1.0]\n", r"returned \[1.0\]; expected one number"),
        ("def score(prompt, response, row): return float('nan')\n", "returned nan; expected a finite number"),
        ("def score(prompt, response, row): return 1 / len(response)\n", "response: ''\nZeroDivisionError"),
        ("import os\ndef score(*row): os._exit(3)\n", r"ended its process \(exit code 3\)"),
        ("import time\ndef score(*row): time.sleep(60)\n", "took longer than 0.5 s on row '0'"),
    ],
)
def test_a_reward_function_that_fails_is_refused_with_the_users_lines(config, capsys, reward, message):
    timeout = "0.5" if "sleep" in reward else "30"
    code, said = refusals(config, capsys, *own_reward(reward), "--reward.timeout_s", timeout)
    assert code == ExitCode.USER_CODE
    assert re.search(message, said)
    assert "set reward.trial_rows to 0" in said
    assert "<frozen" not in said
    if "KeyError" in message:
        assert 'reward.py", line 1, in score' in said


def test_an_environment_that_cannot_be_called_is_refused_by_its_own_name(config, capsys):
    Path("talk.py").write_text("def step(history, row): return 'so', True, 1\n")
    asked = ("--environment.function", "talk.py:step", "--environment.trial_rows", "0")
    code, said = refusals(config, capsys, *asked)
    assert code == ExitCode.USER_CODE
    assert f"environment.function {Path.cwd()}/talk.py:step cannot be called: nothing fills" in said
    assert main(["plan", config, *asked, "--environment.kwargs", json.dumps({"history": []})]) == ExitCode.DONE


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("return row['solution']", "KeyError: 'solution'"),
        ("return 'so', True", "returned .*so.*expected"),
        ("return ('no', False, 0.0) if messages[-1]['content'] else 1 / 0", "ZeroDivisionError"),
    ],
)
def test_an_environment_that_fails_on_rows_is_refused_with_the_users_lines(config, capsys, answer, message):
    Path("talk.py").write_text(f"def step(messages, row):\n    {answer}\n")
    asked = ("--environment.function", "talk.py:step")
    code, said = refusals(config, capsys, *asked)
    assert code == ExitCode.USER_CODE and re.search(message, said)
    assert "Nothing has been started: this was a trial on the first rows" in said
    assert "set environment.trial_rows to 0" in said
    assert main(["plan", config, *asked, "--environment.trial_rows", "0"]) == ExitCode.DONE


KEEPING = """
import random

class Counting:
    def __init__(self, keeps=True):
        self.keeps, self.chats = keeps, 0

    def step(self, messages, row):
        self.chats += self.keeps
        return f"{self.chats}:", False, 0

def drawn(messages, row, seed=None):
    return None, True, (random.Random(seed) if seed else random).random()
"""


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("Counting", {"keeps": False}, "answered ('1:', False, 0.0), then ("),
        ("drawn", {"seed": 1}, "answered (None, True, 0."),
    ],
)
def test_an_environment_that_answers_otherwise_the_second_time_is_noted(config, capsys, name, kwargs, said):
    Path("talk.py").write_text(KEEPING)
    asked = ("--environment.function", f"talk.py:{name}")
    assert main(["plan", config, *asked]) == ExitCode.DONE
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "was asked the same twice" in line]
    assert note.startswith("hpcrl: note: environment.function was asked the same twice on row '") and said in note
    assert main(["plan", config, *asked, "--environment.kwargs", json.dumps(kwargs)]) == ExitCode.DONE
    assert "was asked the same twice" not in capsys.readouterr().err


def test_an_environment_sees_what_it_will_see_in_the_run(config):
    Path("talk.py").write_text(
        "import json\n"
        "def step(messages, row):\n"
        "    print(json.dumps([messages, row]), file=open('seen', 'a'))\n"
        "    return None, True, 0.0\n"
    )
    assert main(["plan", config, "--environment.function", "talk.py:step"]) == ExitCode.DONE
    twice = [json.loads(line) for line in Path("seen").read_text().splitlines()]
    seen = twice[:3]
    assert twice == [*seen, *seen]
    assert [[it["role"] for it in messages] for messages, _ in seen] == [["user", "assistant"]] * 3
    assert [messages[0]["content"] for messages, _ in seen] == [row["prompt"] for _, row in seen]
    assert [messages[1]["content"] for messages, _ in seen] == ["#### 1", "#### 2", ""]


def test_a_reward_function_sees_what_it_will_see_in_the_run(config):
    own = own_reward(
        "import json, sys\n"
        "def score(prompt, response, row):\n"
        "    print(json.dumps([prompt, response, row]), file=open('seen', 'a'))\n"
        "    return 0\n"
    )
    assert main(["plan", config, *own, "--data.prompt_template", "={prompt}"]) == ExitCode.DONE
    rows = [{"prompt": f"{number}+1=", "answer": f"#### {number + 1}", "id": str(number)} for number in range(3)]
    seen = [json.loads(line) for line in Path("seen").read_text().splitlines()]
    assert seen == 2 * [["=0+1=", "#### 1", rows[0]], ["=1+1=", "#### 2", rows[1]], ["=2+1=", "", rows[2]]]


REMEMBERING = """
import random

SEEN = set()

def novel(response, keeps=True):
    new = response not in SEEN
    if keeps:
        SEEN.add(response)
    return float(new)

def drawn(response, seed=None):
    return (random.Random(seed) if seed else random).random()

def placed(response, moves=True):
    return {"scores": [(0, 1.0), (len(response), 0.5)] if moves and novel(response) else [(0, 1.5)]}
"""


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("novel", {"keeps": False}, "reward.function was asked the same twice on row '0', and answered 1.0, then 0.0."),
        ("drawn", {"seed": 1}, "reward.function was asked the same twice on row '0', and answered 0."),
        ("placed", {"moves": False}, "reward was asked the same twice on row '0', and answered ((0, 1.0), "),
    ],
)
def test_a_reward_that_scores_otherwise_the_second_time_is_noted(config, capsys, name, kwargs, said):
    Path("reward.py").write_text(REMEMBERING)
    asked = ("--reward.function", f"reward.py:{name}")
    assert main(["plan", config, *asked]) == ExitCode.DONE
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "was asked the same twice" in line]
    assert note.startswith(f"hpcrl: note: {said}") and note.endswith("have to follow from its arguments alone.")
    assert main(["plan", config, *asked, "--reward.kwargs", json.dumps(kwargs)]) == ExitCode.DONE
    assert "was asked the same twice" not in capsys.readouterr().err


def test_of_several_components_the_one_is_named_that_scores_otherwise(config, capsys):
    Path("reward.py").write_text(REMEMBERING)
    parts = {"right": {"function": "exact"}, "new": {"function": "reward.py:novel"}}
    asked = ("--reward.function", "null", "--reward.components", json.dumps(parts))
    assert main(["plan", config, *asked]) == ExitCode.DONE
    assert "note: reward.components.new.function was asked the same twice" in capsys.readouterr().err


@pytest.fixture
def disk(monkeypatch):
    """Give the disk of runs so many free bytes."""

    def free(bytes_):
        usage = namedtuple("usage", "free")
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: usage(bytes_))

    return free


def test_a_disk_without_room_for_one_checkpoint_is_refused_with_figures_and_setting(config, capsys, disk):
    disk(100_000)
    for options in (["--dry-run"], []):
        assert main(["submit", config, *options, "--cluster", "local"]) == ExitCode.CONFIGURATION
        said = capsys.readouterr().err
        assert not Path("runs").exists()
    assert "one checkpoint takes 415.14 KiB (actor 207.38 KiB, critic 207.76 KiB), but the disk of " in said
    assert f"{Path.cwd()} has 97.66 KiB free. Free some space there, or set run_root (or --run-dir)" in said
    assert main(["plan", config]) == ExitCode.DONE
    planned = capsys.readouterr()
    assert f"note: a run there would be refused: {said.removeprefix('hpcrl: ')}" in planned.err
    assert "On disk, at most: 3 checkpoints" in planned.out
    disk(500_000)
    assert main(["plan", config]) == ExitCode.DONE
    assert "would be refused" not in capsys.readouterr().err


def test_a_disk_without_room_for_the_checkpoints_to_be_kept_is_said(config, capsys, disk):
    disk(1_500_000)
    assert main(["plan", config]) == ExitCode.DONE
    assert "note:" not in capsys.readouterr().err
    for settings in (["--control.keep_checkpoints", "4"], ["--control.steps", "12", "--control.export.steps", "2"]):
        assert main(["plan", config, *settings]) == ExitCode.DONE
        assert "note: the run may write 2." in (said := capsys.readouterr().err)
        assert "1.43 MiB free. Lower control.keep_checkpoints, export more rarely (control.export)" in said


def test_the_spills_of_steps_that_count_tokens_are_estimated_from_the_rows(config, capsys, disk):
    """256 tokens are some 55 prompts of 5. Each gets 16 tokens of 9 bytes: 8 KB a step; 256 rows would take 37 KB."""
    generate = write_config(Path("generate.yaml").absolute(), values_of("generate"))
    words = [
        "plan",
        str(generate),
        "--data.batch_size",
        "null",
        "--data.batch_tokens",
        "256",
        "--samples.per_step",
        "0",
    ]
    disk(60_000)
    assert main(words) == ExitCode.DONE
    assert "note: the run may write" not in capsys.readouterr().err
    disk(10_000)
    assert main(words) == ExitCode.DONE
    assert "note: the run may write" in capsys.readouterr().err


def test_a_place_where_no_run_can_be_is_refused_before_anything_is_read(config, capsys):
    """An unreadable model would be named first if it had been read."""
    Path("model/model.safetensors").write_text("nothing")
    Path("thesis").mkdir()
    Path("thesis/chapter").touch()
    assert main(["plan", config, "--run_root", "rows.jsonl/runs", "--reward.trial_rows", "0"]) == ExitCode.DATA
    assert "cannot be made" not in capsys.readouterr().err
    for place, said in (("thesis", "it already contains chapter."), ("rows.jsonl/run", "rows.jsonl is no folder.")):
        assert main(["submit", config, "--cluster", "local", "--run-dir", place]) == ExitCode.CONFIGURATION
        assert said in capsys.readouterr().err


def test_a_reward_function_that_needs_the_nodes_is_not_tried(config):
    broken = own_reward("import no_such_module\ndef score(*row): return 0\n")
    assert main(["plan", config, *broken, "--reward.trial_rows", "0"]) == ExitCode.DONE


def test_weights_of_many_gibibytes_are_checked_by_their_headers(config):
    sizes = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 32}
    write_model(Path("large"), **sizes)
    assert Path("large/model.safetensors").stat().st_size > 20 * 2**30
    calls, _ = work_of("plan", config, "--reference.path", "large", "--cluster", "slurm")
    small, _ = work_of("plan", config, "--cluster", "slurm")
    assert calls < 1.5 * small, (calls, small)


def test_what_a_run_would_not_copy_of_the_reward_functions_files_is_noticed(config, capsys):
    Path("word.txt").write_text("yes")
    text = (
        "from pathlib import Path\nWORD = Path(__file__).with_name('word.txt').read_text()\ndef score(*_): return 1\n"
    )
    reward = own_reward(text)
    code, said = refusals(config, capsys, *reward)
    assert code == ExitCode.USER_CODE
    assert f"{Path('reward.py').absolute()}:score" in said and "in code.files" in said and "/tmp/hpcrl-" not in said
    assert main(["plan", config, *reward, "--code.files", '["*.txt"]']) == ExitCode.DONE
