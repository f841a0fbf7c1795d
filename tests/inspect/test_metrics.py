import json
from pathlib import Path

from support.made_run import MadeRun, ended_run

from hpcrl.inspect.metrics import MetricsReader, figures, last, merged_metrics, series, settings_changes


def test_rows_of_all_attempts_are_one_series(tmp_path: Path) -> None:
    rows = merged_metrics(ended_run(tmp_path / "run").run)
    assert [row["step"] for row in rows] == list(range(61))


def test_the_newest_attempt_wins_a_step_that_several_have(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    for attempt, steps in enumerate([[1, 2, 3], [3, 4], [2]]):
        made.begin()
        with open(made.run.metrics(attempt), "w") as file:
            file.writelines(json.dumps({"step": step, "x/y": attempt}) + "\n" for step in steps)
    rows = merged_metrics(made.run)
    assert [(row["step"], row["x/y"]) for row in rows] == [(1, 0), (2, 2), (3, 1), (4, 1)]


def test_a_reader_sees_what_is_added(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    reader = MetricsReader(made.run)
    assert reader.rows() == []
    made.begin()
    made.steps(0, 2)
    assert len(reader.rows()) == 3
    made.begin()
    made.steps(3, 4)
    assert len(reader.rows()) == 5
    assert reader.restarts() == [3]


def test_a_series_has_only_the_steps_in_which_it_was_measured(tmp_path: Path) -> None:
    rows = merged_metrics(ended_run(tmp_path / "run").run)
    assert series(rows, "eval_rew/accuracy")[0] == [0, 10, 20, 30, 40, 50, 60]
    assert last(rows, "eval_rew/accuracy") == rows[60]["eval_rew/accuracy"]
    assert last(rows, "no/such") is None


def test_settings_change_where_the_version_is_another_than_in_the_step_before() -> None:
    rows = [{"step": step, "settings": version} for step, version in enumerate([0, 0, 2, 2, 1])]
    assert settings_changes(rows) == [(2, 2), (4, 1)]
    assert settings_changes([{"step": 7, "settings": 1}, {"step": 8}]) == [(7, 1)]
    assert settings_changes([]) == []


def test_figures_are_the_known_ones_or_the_first_few() -> None:
    assert [figure.label for figure in figures([{"step": 1, "rew_inf/reward": 1.0, "x/y": 2.0}])] == ["reward"]
    unknown = {"step": 1, "epoch": 0, "samples": 4} | {f"call/{letter}": 1.0 for letter in "abcdef"}
    assert [figure.label for figure in figures([unknown])] == ["call/a", "call/b", "call/c", "call/d"]


def test_the_reward_on_held_out_rows_is_shown_beside_the_accuracy():
    row = {"step": 1, "rew_inf/reward": 0.1, "eval_rew/reward": 0.2, "eval_rew/accuracy": 0.3}
    assert [figure.label for figure in figures([row])] == ["reward", "held-out reward", "accuracy"]
