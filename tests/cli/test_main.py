"""The command `hpcrl` itself: help, unknown commands, errors in plain words."""

import os
import subprocess
import sys

import pytest
from support.commands import work_of
from support.made_run import ended_run

from hpcrl.cli.main import COMMANDS, main
from hpcrl.errors import ExitCode

HEAVY = ("torch", "transformers", "numpy", "h5py", "zmq", "networkx", "submitit")


def test_help_loads_nothing_heavy():
    code = f"import sys\nfrom hpcrl.cli.main import main\nmain(['--help'])\nprint(set(sys.modules) & set({HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_help_comes_at_once():
    calls, modules = work_of("--help")
    assert calls < 20_000 and modules < 150, (calls, modules)


@pytest.mark.parametrize("command", ["list", "status"])
def test_who_looks_at_runs_loads_no_arrays(tmp_path, command):
    ended_run(tmp_path / "runs" / "one")
    where = tmp_path / "runs" if command == "list" else tmp_path / "runs" / "one"
    code = f"import sys\nfrom hpcrl.cli.main import main\ncode = main([{command!r}, {str(where)!r}])\n"
    code += "print(code, sorted(set(sys.modules) & {'torch', 'numpy', 'h5py'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "one" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []"


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


def test_every_command_explains_itself_without_torch():
    code = "import sys\nfrom hpcrl.cli.main import COMMANDS, main\n"
    code += "for command in COMMANDS:\n    print(command, main([command, '--help']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        usage, _, done.stdout = done.stdout.partition(f"\n{command} 0 False\n")
        assert usage.startswith(f"usage: hpcrl {command} ")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "hpcrl 0.1.0\n"


@pytest.mark.parametrize(("words", "said"), [([], "No command given"), (["sbumit"], "sbumit is not a command")])
def test_an_unknown_command_exits_with_the_code_of_the_users_errors(capsys, words, said):
    assert main(words) == ExitCode.CONFIGURATION
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"doctor", "list"}))
def test_a_command_without_its_argument_says_which(capsys, command):
    assert main([command]) == ExitCode.CONFIGURATION
    error = capsys.readouterr().err
    assert error.startswith("hpcrl: ")
    assert f"See hpcrl {command} --help." in error
    assert "Traceback" not in error


@pytest.mark.parametrize("command", ["status", "logs", "pause", "continue", "stop", "resume", "list"])
def test_a_directory_that_is_no_run_is_named(capsys, tmp_path, command):
    assert main([command, str(tmp_path / "nothing")]) in (ExitCode.CONFIGURATION, ExitCode.DATA)
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def test_what_a_locale_cannot_write_is_written_as_numbers(tmp_path):
    root = ended_run(tmp_path / "run").run.root
    for words in (["status", root], ["inspect", root]):
        env = os.environ | {"PYTHONIOENCODING": "ascii"}
        done = subprocess.run(
            [sys.executable, "-m", "hpcrl.cli.main", *words], capture_output=True, env=env, check=True
        )
        assert rb"held-out share with reward \u2265 1" in done.stdout
