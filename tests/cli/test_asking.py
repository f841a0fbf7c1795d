"""`hpcrl generate` and `hpcrl chat`: what the engine says, as it comes, from a process that alone loads torch."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cluster import children_of, is_alive
from support.experiments import write_model
from support.hosts import write_task
from support.templates import chat_tokenizer

from hpcrl.cli.main import INTERRUPTED, main
from hpcrl.data.tokens import load_tokens
from hpcrl.engines.flat import new_model
from hpcrl.errors import ExitCode
from hpcrl.launch import answering
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.sampling import SamplingOptions

MESSAGES = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
CHAT = MESSAGES + "{% if add_generation_prompt %}[assistant]{% endif %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder / "model"


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of zeros that has a chat template: it says its first token again and again."""
    folder = write_model(tmp_path_factory.mktemp("chat") / "model", vocab_size=320, max_position_embeddings=512)
    chat_tokenizer(folder, CHAT)
    return folder


def expected(folder: Path, prompt: str, seed: int, options: GenerationOptions) -> str:
    tokens, ours = load_tokens(folder), new_model(folder, dtype=torch.float32, trainable=False)
    made = Generator(ours, options).generate([tokens.encode_prompts([prompt])[0]], [seed])
    return tokens.decode_on(tokens.lead, made.tokens[0].tolist())


@pytest.mark.parametrize("greedy", [pytest.param(True, marks=pytest.mark.slow), False])
def test_it_prints_what_the_engine_says(model: Path, capsys: pytest.CaptureFixture[str], greedy: bool) -> None:
    eos = load_tokens(model).eos_ids
    sampling = SamplingOptions(0.8, 5, 0.9, greedy)
    options = GenerationOptions(max_new_tokens=24, sampling=sampling, eos_token_ids=eos, slots=1)
    words = ["--temperature", "0.8", "--top-k", "5", "--top-p", "0.9", "--seed", "7", *["--greedy"] * greedy]
    assert main(["generate", str(model), "3+4=", "--max-new-tokens", "24", *words]) == ExitCode.DONE
    assert capsys.readouterr().out == expected(model, "3+4=", 7, options) + "\n"


@pytest.mark.slow
def test_the_prompt_may_come_from_a_file_or_through_a_pipe(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("5+5=\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("5+5=\n"))
    said = []
    for words in (["5+5="], ["--file", str(tmp_path / "prompt.txt")], ["-"]):
        assert main(["generate", str(model), *words, "--max-new-tokens", "8"]) == ExitCode.DONE
        said.append(capsys.readouterr().out)
    assert len(set(said)) == 1 and said[0].strip("\n")


@pytest.mark.slow
def test_a_string_ends_the_response(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", str(model), "3+4=", "--max-new-tokens", "30", "--seed", "3"]
    assert main(words) == ExitCode.DONE
    whole = capsys.readouterr().out
    assert main([*words, "--stop", whole[2]]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert said[:-1] == whole[: whole.index(whole[2]) + 1]


def test_the_command_loads_no_torch(chatting: Path) -> None:
    code = "import sys\nfrom hpcrl.cli.main import main\n"
    code += f"print(main(['generate', {str(chatting)!r}, 'Be brief.', '--max-new-tokens', '3']))\n"
    code += "print(sorted(set(sys.modules) & {'torch', 'deepspeed', 'zmq'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["0", "[]"], done.stderr


def test_a_chat_remembers_what_was_said(
    chatting: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    respond = answering.Answerer.respond

    def noted(self: answering.Answerer, prompt: np.ndarray, *rest: object) -> object:
        asked.append(prompt.tolist())
        return respond(self, prompt, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(answering.Answerer, "respond", noted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("2 + 2\n4 = 4\n/new\n2 + 2\n/exit\nnever\n"))
    assert main(["chat", str(chatting), "--system", "Be brief.", "--greedy", "--max-new-tokens", "2"]) == ExitCode.DONE
    said = capsys.readouterr().out.splitlines()
    tokens = load_tokens(chatting)
    first, second, anew = (tokens.tokenizer.decode(ids, skip_special_tokens=True) for ids in asked)
    assert first == anew == "[system] Be brief.\n[user] 2 + 2\n[assistant]"
    assert second == f"[system] Be brief.\n[user] 2 + 2\n[assistant] {said[0]}\n[user] 4 = 4\n[assistant]"


def test_ctrl_c_ends_both_processes(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 100_000}
    long = tmp_path / "long"
    long.mkdir()
    for path in model.iterdir():
        (long / path.name).symlink_to(path)
    (long / "config.json").unlink()
    (long / "config.json").write_text(json.dumps(config))
    (long / "tokenizer_config.json").unlink()
    (long / "tokenizer_config.json").write_text('{"eos_token": "=" }')
    command = [sys.executable, "-m", "hpcrl", "generate", str(long), "3+", "--max-new-tokens", "90000"]
    command += ["--top-k", "1", "--temperature", "1.0"]
    # Whoever runs the tests behind a shell's & has Ctrl-C ignored, and so would the command.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, preexec_fn=heard) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        [child] = children_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)  # what is written meanwhile may be more than a pipe holds
        assert process.returncode == INTERRUPTED
        assert not is_alive(child)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{model}x", "1"], "there is no folder or run {model}x. The nearest is {model}."),
        (["none/such", "1"], "none/such is no folder, no run, and not in the local cache of the hub."),
        (["{model}", "1", "--dtype", "fp8"], "--dtype fp8 is none of fp32, bf16, fp64."),
        (["{model}", "1", "--device", "tpu"], "--device tpu is none of auto, cpu, cuda."),
        pytest.param(
            ["{model}", "1", "--device", "cuda"], "--device cuda: torch sees no GPU here.", marks=pytest.mark.slow
        ),
        (["{model}", "1", "--file", "x"], "a prompt and --file are two prompts."),
        (["{model}", "--file", "no such"], "--file no such cannot be read"),
        (["{model}", "1", "--temperature", "0"], "temperature"),
        (["{model}", "1" * 64], "the prompt has 64 tokens, and {model} has 64 positions."),
        (["{model}", "1", "--system", "x"], "{model} has no chat template."),
        (["{model}", "1", "--system", "x", "--raw"], "--system is part of a chat, and --raw is none."),
    ],
)
def test_what_cannot_be_asked_is_refused(
    model: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *(word.format(model=model) for word in words)]) == ExitCode.CONFIGURATION
    assert says.format(model=model) in capsys.readouterr().err
    if "--device" in words:
        cpu = [word.format(model=model) for word in words[:-1]]
        assert main(["generate", *cpu, "cpu", "--max-new-tokens", "2"]) == ExitCode.DONE


@pytest.mark.slow
def test_a_model_of_the_hubs_cache_is_found_by_its_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "models--an-org--a-model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    (cached / "snapshots").mkdir()
    (cached / "snapshots" / ("0" * 40)).symlink_to(model)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert main(["generate", "an-org/a-model", "1", "--max-new-tokens", "2"]) == ExitCode.DONE


def test_a_mistyped_folder_is_met_with_the_nearest(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "base").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    for mistyped, near in (("models/bse", "models/base"), ("./models/bas", "models/base"), ("./modls/base", "models")):
        assert main(["generate", mistyped, "1"]) == ExitCode.CONFIGURATION
        assert f"there is no folder or run {mistyped}. The nearest is {near}.\n" in capsys.readouterr().err
    assert main(["generate", "org/model", "1"]) == ExitCode.CONFIGURATION
    assert "download org/model" in capsys.readouterr().err, "no folder org is here: a name of the hub"
    assert main(["generate", "models/base", "1", "--max-new-tokens", "2"]) == ExitCode.DONE


@pytest.mark.parametrize(
    ("config", "says"),
    [(b"", "config.json is no JSON"), (b"[1]", "config.json holds a list"), (b"\x80", "config.json is no JSON")],
)
def test_a_damaged_config_is_told(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], config: bytes, says: str
) -> None:
    broken = Path(shutil.copytree(model, tmp_path / "broken"))
    (broken / "config.json").write_bytes(config)
    words = ["--data", "rows.jsonl", "--reward", "exact", "--out", str(tmp_path / "evals")]
    for command in (["generate", str(broken), "1"], ["chat", str(broken)], ["eval", str(broken), *words]):
        assert main(command) == ExitCode.DATA
        assert says in capsys.readouterr().err


def test_a_folder_without_a_tokenizer_asks_for_one_or_for_another_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = Path(shutil.copytree(model, tmp_path / "without"))
    (without / "tokenizer.json").unlink()
    assert main(["generate", str(without), "1"]) == ExitCode.DATA
    assert "Put Hugging Face's tokenizer.json there, or name another model." in capsys.readouterr().err


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answering, "free_bytes", lambda device: (10_000.0, "this machine"))
    monkeypatch.setattr(answering.subprocess, "Popen", None)
    assert main(["generate", str(model), "1"]) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert f"{model} needs " in said and "and this machine has 9.77 KiB free. Give --dtype bf16" in said
    monkeypatch.undo()
    assert main(["generate", str(model), "1", "--dtype", "bf16", "--max-new-tokens", "2"]) == ExitCode.DONE


def test_free_memory_is_the_machines_or_what_is_left_to_the_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  100 kB\nMemAvailable:  50 kB\n")
    asked = ("cpu", tmp_path / "meminfo", tmp_path)
    assert answering.free_bytes(*asked) == (51_200.0, "this machine")
    (tmp_path / "memory.current").write_text("1000\n")
    for limit, free in (("max", 51_200.0), ("31000", 30_000.0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert answering.free_bytes(*asked)[0] == free


def test_a_process_that_is_killed_is_told(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answering, "SERVER", "no.such.module")
    assert main(["generate", str(model), "1"]) == ExitCode.INTERNAL
    assert "the process that holds the model has ended with 1; what it said is above." in capsys.readouterr().err
