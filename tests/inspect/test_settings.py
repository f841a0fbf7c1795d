"""What a run is set to, as its report shows it."""

import io
from pathlib import Path

from rich.console import Console
from support.made_run import MadeRun

from hpcrl.config.changes import with_settings
from hpcrl.data.user_code import CodeSetting, UserCode
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.settings_text import settings_section
from hpcrl.inspect.terminal import show
from hpcrl.inspect.views.settings import settings_of


def code_of(text: str) -> UserCode:
    return UserCode(
        {"reward.function": CodeSetting("/my/reward.py:score", ("/my/reward.py",))}, {"/my/reward.py": text.encode()}
    )


def test_settings_are_those_that_differ_from_defaults_and_what_each_version_changed(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 3)
    before = made.run.read_settings(0).experiment
    made.run.add_settings(before, made.run.keep_code(code_of("def score():\n    return 1\n")))
    changed = with_settings(before, {"actor.optimizer.lr": 0.5})
    made.run.add_settings(changed, made.run.keep_code(code_of("def score():\n    return 2\n")))
    view = settings_of(RunReader(made.run))
    own = {it.key: (it.value, it.default) for it in view.own}
    assert own["actor.optimizer.lr"] == (0.5, 1e-6) and own["data.batch_size"] == (32, None)
    assert "seed" not in own and "actor.optimizer.betas" not in own and view.every["seed"] == 1
    (_, version) = view.versions
    assert (version.version, version.from_step) == (2, None)
    assert [(it.name, it.first, it.second) for it in version.changes] == [("actor.optimizer.lr", 1e-6, 0.5)]
    assert version.code[0].file == "/my/reward.py"
    assert version.code[0].lines == ["@@ -2 +2 @@", "-    return 1", "+    return 2"]
    said = settings_section(view)["versions"][1]
    assert said["changes"] == ["actor.optimizer.lr = 0.5 (was 1e-6)"] and "no step has ended" in said["since"]
    out = io.StringIO()
    show(view, Console(file=out, width=200))
    shown = out.getvalue().splitlines()
    assert any(line.split() == ["actor.optimizer.lr", "0.5", "1e-6"] for line in shown)
    assert f"{len(view.every) - len(view.own)} other settings as by default: --json" in shown
    later = shown[next(i for i, line in enumerate(shown) if line.startswith("settings 2, no step has ended")) + 1 :]
    assert later[0] == "  actor.optimizer.lr = 0.5 (was 1e-6)" and later[-1] == "    +    return 2"
