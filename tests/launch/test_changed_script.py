"""A script that fails in the middle of a run is corrected, and changed, from the command line."""

import json
import re
from pathlib import Path

from support.chaos import outputs, remains
from support.judged_run import hpcrl, written

from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Trained
from hpcrl.durable.once import SetAside
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.verdicts import VERDICTS

PAGE = Path(__file__).parents[2] / "docs" / "controller.md"
(RESUME,) = re.findall(r"^hpcrl (resume RUN --accept-changed .*)$", PAGE.read_text(), re.MULTILINE)
LOOP = """
from dataclasses import replace
from hpcrl.recipes import ppo


def loop(run, e):
    actor, critic, reward = run.groups("actor", "critic", "reward")
    for step in run.steps():
        changed = step.number >= SINCE
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(reward.score(batch), critic.values(batch))
        fitted = critic.update(batch)
        if MISTAKE and step.number == 4:
            run.once(lambda key: None, name="noted")
            step.log(value_loss=fitted.stats["value loss"])
        actor.update(batch[:2] if changed else batch)
        step.log(changed=changed)


PPO = replace(ppo.ALGORITHM, script=loop)
"""


def loop(folder: Path, since: int, mistake: bool = False) -> None:
    (folder / "loop.py").write_text(LOOP.replace("SINCE", str(since)).replace("MISTAKE", str(mistake)))


def scripted(folder: Path) -> Path:
    """ppo.yaml of a script, without a checkpoint on its way."""
    written(folder)
    values = json.loads((folder / "ppo.yaml").read_text())
    (folder / "ppo.yaml").write_text(json.dumps(values | {"algorithm": "loop.py:PPO", "control": {"steps": 5}}))
    return folder


def test_a_script_is_changed_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """It fails in the fourth step, in which the critic is trained: those before it end as they were made."""
    folder = scripted(tmp_path)
    loop(folder, since=4)
    done = hpcrl(folder, "submit", "ppo.yaml", "--run-dir", "expected")
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    expected = remains(RunDirectory.open(folder / "expected"))
    loop(folder, since=100, mistake=True)
    failed = hpcrl(folder, "submit", "ppo.yaml", "--run-dir", "run")
    assert failed.returncode == ExitCode.USER_CODE, failed.stdout + failed.stderr
    run = RunDirectory.open(folder / "run")
    assert "value loss" in failed.stdout + failed.stderr
    assert {line.event.step for line in read_history(run).lines if isinstance(line.event, Trained)} == {1, 2, 3, 4}

    loop(folder, since=0)
    without = "recipe=lambda e: [it for it in ppo.recipe(e) if it.name != 'critic_train'], script=loop)"
    (folder / "loop.py").write_text((folder / "loop.py").read_text().replace("script=loop)", without))
    refused = hpcrl(folder, *RESUME.replace("RUN", "run").split())
    assert refused.returncode == ExitCode.CONFIGURATION, refused.stdout + refused.stderr
    assert "changes actor, but the run's checkpoints have actor, critic" in refused.stderr
    loop(folder, since=0)
    done = hpcrl(folder, *RESUME.replace("RUN", "run").split())
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    found = remains(run)
    assert found.parameters == expected.parameters and found.state == expected.state, outputs(run)
    assert [{**row, "settings": 0} for row in found.metrics] == list(expected.metrics)
    assert [line.event.step for line in read_history(run).lines if isinstance(line.event, SetAside)] == [4]
    why = hpcrl(folder, "inspect", "run", "why").stdout
    assert "changed script (certain)" in why and "the script as it was fails in step 4" in why
    words = VERDICTS["changed script"].next.format(run="run").split()
    assert hpcrl(folder, *words[1:]).returncode == ExitCode.DONE
