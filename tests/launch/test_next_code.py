"""Which code of the user's is taken anew when a run is resumed."""

import re
from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.config.experiment import to_dict
from hpcrl.data.user_code import code_places, collect_code
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.launch.next_code import next_code
from hpcrl.recipes.algorithm import experiment_from


def test_a_file_of_several_settings_is_taken_anew_with_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    (tmp_path / "judge.py").write_text("import part\ndef score(prompt, response, row): return part.ONE\n")
    (tmp_path / "part.py").write_text("ONE = 1.0\n")
    words = ["reward.function=judge.py:score", f"code.files=[{tmp_path}/part.py]"]
    experiment = load_config(write_config(tmp_path / "c.yaml", ppo_values()), words)
    run = RunDirectory.create(
        tmp_path / "run",
        experiment=to_dict(experiment),
        host="hpcrl.x:Y",
        key=KeyPair("public", "secret"),
        inputs={},
        code=collect_code(code_places(experiment), experiment.code.files),
    )
    (tmp_path / "part.py").write_text("ONE = 2.0\n")
    recorded = experiment_from(run.configuration())
    with pytest.raises(ConfigurationError, match=r"part\.py changed and also belongs to code\.files") as refused:
        next_code(run, recorded, ("reward.function",))
    found = re.search(r"Accept all of them: --accept-changed (.*)", str(refused.value))
    assert found is not None
    taken = next_code(run, recorded, found[1].split())
    assert taken.taken == {"reward.function", "code.files"} and taken.new is not None
    assert b"ONE = 2.0\n" in taken.new.files.values()
