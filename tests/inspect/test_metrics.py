from pathlib import Path

from support.made_run import ended_run

from hpcrl.inspect.metrics import figures, last, series, with_logged
from hpcrl.inspect.reader import merged_metrics


def test_rows_of_all_attempts_are_one_series(tmp_path: Path) -> None:
    rows = merged_metrics(ended_run(tmp_path / "run").run)
    assert [row["step"] for row in rows] == list(range(61))


def test_a_series_has_only_the_steps_in_which_it_was_measured(tmp_path: Path) -> None:
    rows = merged_metrics(ended_run(tmp_path / "run").run)
    assert series(rows, "eval_rew/accuracy")[0] == [0, 10, 20, 30, 40, 50, 60]
    assert last(rows, "eval_rew/accuracy") == rows[60]["eval_rew/accuracy"]
    assert last(rows, "no/such") is None


def test_figures_are_the_known_ones_or_the_first_few() -> None:
    assert [figure.label for figure in figures([{"step": 1, "rew_inf/reward": 1.0, "x/y": 2.0}], 1.0)] == ["reward"]
    unknown = {"step": 1, "epoch": 0, "samples": 4} | {f"call/{letter}": 1.0 for letter in "abcdef"}
    assert [figure.label for figure in figures([unknown], 1.0)] == ["call/a", "call/b", "call/c", "call/d"]


def test_what_a_script_logs_is_shown_behind_them_and_once() -> None:
    rows = [{"step": 1, "script/b": 1.0, "x/y": 2.0}, {"step": 2, "script/a": 1.0}]
    assert [figure.key for figure in with_logged((), rows)] == ["script/a", "script/b"]
    assert [figure.key for figure in with_logged(figures(rows, 1.0), rows)] == ["script/b", "x/y", "script/a"]


def test_the_reward_on_held_out_rows_is_shown_beside_the_accuracy():
    row = {"step": 1, "rew_inf/reward": 0.1, "eval_rew/reward": 0.2, "eval_rew/accuracy": 0.3}
    assert [figure.label for figure in figures([row], 0.5)] == [
        "reward",
        "held-out reward",
        "held-out share with reward ≥ 0.5",
    ]
