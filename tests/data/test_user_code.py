"""Which files belong to the user's code, found without executing any."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.code import CodeConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data import user_code
from hpcrl.data.user_code import code_places, collect_code
from hpcrl.errors import ConfigurationError
from hpcrl.recipes.ppo import CriticConfig, PPOExperiment
from hpcrl.recipes.toy import ToyExperiment


def tree(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def files_of(place: str, *patterns: str) -> set[str]:
    return {Path(path).name for path in collect_code({"reward.function": place}, patterns).files}


def test_what_a_file_imports_from_its_folder_comes_along_however_it_is_written(tmp_path: Path) -> None:
    tree(
        tmp_path,
        score="import os, a\nfrom b import x\nfrom p.q import r\ndef f():\n    import late\n",
        a="from hpcrl.errors import DataError\nimport numpy\n",
        b="try:\n    import c\nexcept ImportError:\n    pass\n",
        c="",
        late="",
        p__q__r="from .. import sibling\nfrom ..deep import one",
        p__sibling="",
        p__deep__one="",
        hpcrl__errors="",
        other="",
    )
    (tmp_path / "p/__init__.py").write_text("raise RuntimeError")
    found = collect_code({"reward.function": f"{tmp_path}/score.py:f"}, ())
    names = {str(Path(path).relative_to(tmp_path)) for path in found.files}
    assert names == {
        "score.py", "a.py", "b.py", "c.py", "late.py",
        "p/__init__.py", "p/q/r.py", "p/sibling.py", "p/deep/one.py",
    }  # fmt: skip
    assert set(found.settings["reward.function"].files) == set(found.files)


def test_a_module_on_the_path_is_the_users_and_an_installed_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, judge__strict="from . import rules\nimport beside", judge__rules="", beside="")
    (tmp_path / "judge/__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    judged = PPOExperiment(
        data=DataConfig(train="", batch_size=1),
        actor=TrainedModelConfig(path=""),
        critic=CriticConfig(path=""),
        reference=ReferenceConfig(path=""),
        reward=RewardConfig(function=""),
    )
    for function, place in (
        ("judge.strict:score", f"{tmp_path}/judge.strict:score"),
        ("judge:score", f"{tmp_path}/judge:score"),
        ("json:loads", None),
        ("numpy:sum", None),
        ("nowhere:score", None),
        ("gsm8k", None),
    ):
        assert code_places(replace(judged, reward=RewardConfig(function=function))).get("reward.function") == place
    assert files_of(f"{tmp_path}/judge.strict:score") == {"__init__.py", "strict.py", "rules.py", "beside.py"}
    assert "judge" not in sys.modules


def test_code_files_are_files_folders_and_patterns_and_none_may_match_nothing(tmp_path: Path) -> None:
    tree(tmp_path, score="")
    for name in ("a.txt", "b.txt", "c.json", "deep/d.txt", "deep/__pycache__/e.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    place = f"{tmp_path}/score.py:f"
    assert files_of(place, f"{tmp_path}/*.txt") == {"score.py", "a.txt", "b.txt"}
    assert files_of(place, f"{tmp_path}/deep", f"{tmp_path}/c.json") == {"score.py", "d.txt", "c.json"}
    assert files_of(place, f"{tmp_path}/**/*.txt") == {"score.py", "a.txt", "b.txt", "d.txt"}
    with pytest.raises(ConfigurationError, match=r"code.files: .*x.\* matches no file. Set code.files."):
        files_of(place, f"{tmp_path}/x.*")


@pytest.mark.parametrize(
    ("text", "error"),
    [("def", "line 1: invalid syntax"), (None, r"cannot be read \(No such file")],
)
def test_code_that_is_not_there_or_no_python_is_refused_by_setting_and_file(
    tmp_path: Path, text: str | None, error: str
) -> None:
    if text is not None:
        (tmp_path / "score.py").write_text(text)
    with pytest.raises(ConfigurationError, match=rf"reward.function: .*score.py,? .*{error}"):
        files_of(f"{tmp_path}/score.py:f")


def test_more_than_a_run_copies_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, score="x = 1\n" * 10)
    monkeypatch.setattr(user_code, "MOST_BYTES", 20)
    with pytest.raises(ConfigurationError, match=r"Leave data out of code\.files"):
        files_of(f"{tmp_path}/score.py:f")


def test_every_setting_that_names_a_file_is_looked_at() -> None:
    toy = replace(ToyExperiment(), cluster=ClusterConfig(type="/x/mine.py:MINE"), code=CodeConfig(files=("/x/y",)))
    assert code_places(replace(toy, algorithm="/x/algo.py:A")) == {
        "algorithm": "/x/algo.py:A",
        "cluster.type": "/x/mine.py:MINE",
    }
