"""The functions of components are user's code as that of the short form is: absolute, copied, named by its setting."""

from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.config.experiment import to_dict
from hpcrl.data.inputs import input_files
from hpcrl.data.user_code import code_places, collect_code
from hpcrl.durable.code import inside, with_code, write_code
from hpcrl.recipes.algorithm import algorithm_of, experiment_from


@pytest.mark.parametrize("installed", ["json.decoder:score"])
def test_a_components_function_is_copied_and_runs_from_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("style.py").write_text("import words\ndef polite(response): return 1.0\n")
    Path("words.py").write_text("")
    values = ppo_values()
    components = {
        "polite": {"function": "style.py:polite", "weight": 0.5},
        "right": {"function": "exact"},
        "other": {"function": installed},
    }
    values["reward"] = {"components": components}
    experiment = load_config(write_config(tmp_path / "ppo.yaml", values))
    place = f"{tmp_path}/style.py:polite"
    assert experiment.reward.parts["polite"].function == place
    assert code_places(experiment) == {"reward.components.polite.function": place}

    code = collect_code(code_places(experiment), ())
    assert {Path(path).name for path in code.files} == {"style.py", "words.py"}
    folder = tmp_path / "copy"
    folder.mkdir()
    write_code(code, folder)
    copied = experiment_from(with_code(to_dict(experiment), code.settings, folder))
    assert copied.reward.parts["polite"].function == f"{inside(folder, str(tmp_path / 'style.py'))}:polite"
    assert copied.reward.parts["right"] == experiment.reward.parts["right"]
    watched = input_files(experiment, algorithm_of(experiment).rows)
    assert [path.name for path in watched["reward.components.other.function"]] == ["decoder.py"]
