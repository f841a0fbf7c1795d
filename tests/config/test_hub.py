"""Models by their names on the hub: found in the local cache, kept to their commit, downloaded by a named command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs
from support.hosts import write_task

from hpcrl.config import hub
from hpcrl.config.hub import download_command, find_snapshot, is_hub_name, name_of
from hpcrl.errors import ConfigurationError

FIRST, LATER = "a" * 40, "b" * 40


def put_in_cache(cache: Path, model: Path, commit: str) -> Path:
    """As `hf download org/tiny` would leave it: files are links to blobs, main names the commit."""
    home = cache / "models--org--tiny"
    snapshot = home / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir(exist_ok=True)
    (home / "refs").mkdir(exist_ok=True)
    for file in model.iterdir():
        blob = home / "blobs" / f"{commit[:8]}-{file.name}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    (home / "refs" / "main").write_text(commit)
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    write_config(tmp_path / "ppo.yaml", ppo_values())
    write_task(tmp_path / "made")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def loaded(*overrides: str):
    return load_config(Path("ppo.yaml"), overrides)


def test_a_name_in_the_cache_is_its_snapshot_whatever_is_downloaded_later(cache: Path) -> None:
    snapshot = put_in_cache(cache, Path("made/model"), FIRST)
    experiment = loaded("actor.path=org/tiny", "data.tokenizer=org/tiny")
    assert experiment.actor.path == experiment.data.tokenizer == str(snapshot)
    put_in_cache(cache, Path("made/model"), LATER)
    assert experiment.actor.path.endswith(FIRST)
    assert loaded("actor.path=org/tiny").actor.path.endswith(LATER), "the next run's"


def test_a_folder_here_comes_before_the_cache(cache: Path) -> None:
    put_in_cache(cache, Path("made/model"), FIRST)
    shutil.copytree("made/model", "org/tiny")
    assert loaded("actor.path=org/tiny").actor.path == os.path.abspath("org/tiny")


def test_a_name_that_is_nowhere_comes_with_the_command_that_downloads_it(cache: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        loaded("actor.path=org/tiny", "data.tokenizer=org/other")
    said = str(error.value)
    assert "actor.path = org/tiny must be a folder with config.json and *.safetensors, but there is none" in said
    assert f"nor one of that name in {cache}" in said
    assert "`hf download org/tiny`" in said and "`hf download org/other`" in said


def test_a_download_that_was_broken_off_is_to_be_repeated(cache: Path) -> None:
    snapshot = put_in_cache(cache, Path("made/model"), FIRST)
    for file in snapshot.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ConfigurationError, match=r"no model\.safetensors or its index.*`hf download org/tiny`"):
        loaded("actor.path=org/tiny")


def test_the_cache_is_where_huggingface_hub_has_it(tmp_path: Path) -> None:
    for given in ({}, {"HF_HOME": "/a"}, {"HF_HUB_CACHE": "/b", "HF_HOME": "/a"}, {"XDG_CACHE_HOME": "/c"}):
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], **given}
        code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
        theirs = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        ours = "from hpcrl.config.hub import hub_cache; import os; print(hub_cache(os.environ))"
        environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        mine = subprocess.run([sys.executable, "-c", ours], env=environ, capture_output=True, text=True, check=True)
        assert mine.stdout == theirs.stdout, given


def test_a_snapshot_is_what_huggingface_hub_finds(cache: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    snapshot = put_in_cache(cache, Path("made/model"), FIRST)
    assert find_snapshot("org/tiny", cache) == snapshot
    assert try_to_load_from_cache("org/tiny", "config.json", cache_dir=cache) == str(snapshot / "config.json")
    assert name_of(snapshot) == "org/tiny" and name_of(Path("/models/org/tiny")) == ""


@pytest.mark.parametrize("commit", ["", "main", "../../../etc", "a" * 39])
def test_a_reference_that_is_no_commit_leads_nowhere(tmp_path: Path, commit: str) -> None:
    (tmp_path / "models--org--tiny" / "refs").mkdir(parents=True)
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text(commit)
    assert find_snapshot("org/tiny", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "holds"),
    [("Qwen/Qwen2.5-0.5B", True), ("org/tiny", True), ("/org/tiny", False), ("./org/tiny", False), ("../tiny", False),
     ("~/tiny", False), ("tiny", False), ("a/b/c", False)],
)  # fmt: skip
def test_a_name_of_the_hub_is_org_and_name(text: str, holds: bool) -> None:
    assert is_hub_name(text) == holds


@pytest.mark.parametrize(("version", "command"), [("2.4.0", "hf"), ("0.34.1", "hf"), ("0.33.4", "huggingface-cli")])
def test_the_command_is_that_of_the_installed_version(
    monkeypatch: pytest.MonkeyPatch, version: str, command: str
) -> None:
    monkeypatch.setattr(hub.importlib.metadata, "version", lambda _: version)
    assert download_command("org/tiny") == f"{command} download org/tiny"
