"""Where workers' libraries keep what they compile as they run."""

import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs
from support.hosts import write_task
from support.layout_runs import ppo
from torch.utils.file_baton import FileBaton

from hpcrl.agent.compile_caches import FOLDERS, PREFIX, CompileCaches
from hpcrl.errors import ExitCode
from hpcrl.scratch import NEW_S

REWARD = """
import os
import stat
from pathlib import Path

SEEN = Path(__file__).parent / "seen"

def places(prompt, response, row):
    names = ("TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    modes = [stat.S_IMODE(os.stat(os.environ[name]).st_mode) for name in names]
    SEEN.write_text(" ".join([*(os.environ[name] for name in names), *map(oct, modes)]))
    return 1.0
"""
KILLED = f"""
import os, signal
from hpcrl.agent.compile_caches import CompileCaches

caches = CompileCaches({{}})
print(caches.environment()["TRITON_CACHE_DIR"], flush=True)
os.kill(os.getpid(), signal.{signal.SIGKILL.name})
"""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What $TMPDIR is."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def test_each_has_a_folder_of_its_own_which_goes_with_it(scratch: Path) -> None:
    caches = CompileCaches({})
    assert not [*scratch.iterdir()]
    places = caches.environment()
    (folder,) = scratch.glob(f"{PREFIX}*")
    assert places == {variable: str(folder / name) for variable, name in FOLDERS.items()} == caches.environment()
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())} == {0o700}
    caches.remove()
    caches.remove()
    assert not [*scratch.iterdir()]


def test_what_the_site_has_set_stays(scratch: Path) -> None:
    assert CompileCaches({"TRITON_CACHE_DIR": "/fast"}).environment().keys() == FOLDERS.keys() - {"TRITON_CACHE_DIR"}


def test_a_build_over_which_a_worker_was_killed_does_not_keep_the_next_waiting(scratch: Path) -> None:
    """torch's own lock: it is a file that nobody removes but its owner."""
    caches = CompileCaches({})
    built, broken = (Path(caches.environment()["TORCH_EXTENSIONS_DIR"]) / name for name in ("built", "broken"))
    for folder in (built, broken):
        folder.mkdir()
        (folder / "op.so").write_bytes(b"half")
    lock = str(broken / "lock")
    code = "import os, sys; from torch.utils.file_baton import FileBaton; assert FileBaton(sys.argv[1]).try_acquire()"
    killed = subprocess.run([sys.executable, "-c", f"{code}; os.kill(os.getpid(), 9)", lock], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not FileBaton(lock).try_acquire()
    caches.environment()
    assert (built / "op.so").exists() and not broken.exists()
    broken.mkdir()
    baton = FileBaton(lock)
    assert baton.try_acquire()
    baton.release()


def test_the_folder_of_an_agent_that_was_killed_goes_with_the_next(scratch: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    left = Path(killed.stdout.strip()).parent
    assert killed.returncode == -signal.SIGKILL and left.parent == scratch and left.is_dir()
    held = CompileCaches({})
    for folder in (left, Path(held.environment()["TRITON_CACHE_DIR"]).parent):
        old = folder.stat().st_mtime - 2 * NEW_S
        os.utime(folder, (old, old))
    CompileCaches({}).environment()
    assert not left.exists() and Path(held.environment()["TRITON_CACHE_DIR"]).is_dir()


def test_without_room_for_it_workers_begin_all_the_same(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(scratch / "not there"))
    monkeypatch.setattr("tempfile.tempdir", str(scratch / "not there"))
    assert CompileCaches({}).environment() == {}
    assert "no folder for what is compiled as it runs" in capsys.readouterr().err


def test_the_workers_of_a_run_are_told_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in FOLDERS:  # torch sets one itself where it compiles, as it may have in this process
        monkeypatch.delenv(variable, raising=False)
    write_task(tmp_path)
    (tmp_path / "places.py").write_text(REWARD)
    experiment = ppo(tmp_path, "d1", 1)
    experiment = replace(experiment, reward=replace(experiment.reward, function=f"{tmp_path / 'places.py'}:places"))
    run = create_run(tmp_path / "run", experiment)
    assert finish(run) == [ExitCode.DONE], outputs(run)
    told = (tmp_path / "seen").read_text().split()
    assert [Path(path).name for path in told[:3]] == ["torch_extensions", "inductor", "triton"]
    (folder,) = {Path(path).parent for path in told[:3]}
    assert folder.name.startswith(PREFIX) and told[3:] == ["0o700"] * 3
    assert folder.parent.is_dir() and not folder.exists()
