"""Random scripts, killed anywhere, end as if nothing had happened. `make kill-scripts` draws 500.

The toy host suffices: what differs between scripts is what they ask for, what is recorded of it and what is adopted,
which is the same code for every host. What a host of models makes of a call twice is struck by `make kill`.
"""

import json
import os
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import random_script
from support.archives import archives
from support.chaos import create_run, finish, outputs, remains, started_twice, toy_experiment, whole_run
from support.faults import Strike, Strikes

from hpcrl.config.experiment import to_dict
from hpcrl.controller.rehearse import Order, rehearse
from hpcrl.wire.script_messages import CallAsked, OnceAsked, TurnEnded

RANDOM = f"{Path(random_script.__file__)}:ALGORITHM"
PATIENT = {"lost_after_s": 5.0, "start_timeout_s": 60.0}
WHERE = [
    ("master", ("master.ask", "master.turn", "master.send", "journal.before", "journal.after", "manifest.published")),
    ("worker-2", ("script.ask", "script.answered", "worker.call", "worker.executed", "spill.published")),
    ("worker-0", ("worker.call", "worker.executed", "worker.replied", "spill.published", "shard.published")),
]


SURE = [
    ("master", ("master.ask", "master.send", "journal.before", "journal.after")),
    ("worker-2", ("script.ask", "script.answered")),
    ("worker-0", ("worker.call", "worker.executed", "worker.replied")),
]
"""What every script passes eight times."""
TARGETS = ["self", "master", "agent-0", "worker-0", "worker-1", "worker-2", "all"]


def drawn_strikes(folder: Path, seed: int) -> list[Strike]:
    """Two; the first one comes, the second may come before, after, or never."""
    draw = random.Random(seed)
    found = []
    for number, (where, most) in enumerate([(SURE, 8), (WHERE, 25)]):
        who, points = draw.choice(where)
        nth, target = draw.randint(1, most), draw.choice(TARGETS)
        found.append(Strike(folder, f"strike{number}", who, draw.choice(points), "KILL", target, nth))
    return found


def check(tmp_path: Path, experiment: Any, seed: int) -> None:
    (tmp_path / "whole").mkdir()
    undisturbed = whole_run(tmp_path / "whole", experiment)
    run = create_run(tmp_path / "run", experiment)
    strikes = drawn_strikes(tmp_path, seed)

    finish(run, Strikes(tuple(strikes)))
    assert strikes[0].marker.exists(), "the strike never came: the test tests nothing"
    assert remains(run) == remains(undisturbed), outputs(run)
    assert archives(run) == archives(undisturbed)
    assert started_twice(run) == []


FEW, MANY = range(1), range(1, int(os.environ.get("HPCRL_TEST_SCRIPTS", "200")))


@pytest.mark.parametrize("seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)])
def test_a_random_script_is_killed_anywhere(tmp_path: Path, seed: int) -> None:
    experiment = replace(toy_experiment(**PATIENT), algorithm=RANDOM, seed=seed)
    check(tmp_path, experiment, seed)


DRAWN = {
    *("actor_gen", "critic_inf", "rew_inf", "actor_train", "critic_train", "shifted", "eval_gen", "eval_rew"),
    *("actor_double", "actor_gaps", "actor_told", "actor_by_ends", "critic_halve", "critic_weight", "noted"),
}


def test_random_scripts_do_all_that_a_script_can(tmp_path: Path) -> None:
    asked: list[Any] = []
    for seed in range(20):
        experiment = replace(toy_experiment(**PATIENT), algorithm=RANDOM, seed=seed)
        trace = rehearse(Order(to_dict(experiment), 1, 1, 5, (), 0, 60.0, f"{tmp_path}/computed.npz"))
        assert not trace.error, trace.error
        asked += trace.asked
    calls = [it for it in asked if isinstance(it, CallAsked)]
    assert {re.sub(r"_\d+$", "", it.call) for it in asked if isinstance(it, CallAsked | OnceAsked)} == DRAWN
    made = [of for call in calls for runs in call.inputs.values() for of in runs]
    assert any(of.repeats for of in made) and any(of.key for of in made)
    assert len({len(call.ids) for call in calls}) > 8, "filters, parts and copies"
    ended = [it for it in asked if isinstance(it, TurnEnded)]
    assert {"by", "course", "methods", "own", "tries"} <= {key for it in ended for key in json.loads(it.state)}
    assert any(it.logged for it in ended)
