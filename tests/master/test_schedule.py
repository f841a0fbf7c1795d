"""The calendar: which steps exist, and what is due in them."""

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.master.schedule import Due, IntervalTimer, RunSchedule


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_step_zero_exists_only_where_something_is_evaluated() -> None:
    control = ControlConfig(steps=3, evaluate=Frequency(steps=2))
    assert RunSchedule(control, evaluates=True).first_step == 0
    assert RunSchedule(control, evaluates=False).first_step == 1


def test_step_zero_only_evaluates() -> None:
    calendar = RunSchedule(ControlConfig(steps=3, checkpoint=Frequency(steps=1)), evaluates=True)
    assert calendar.due(0, None) == Due(train=False, evaluate=True, checkpoint=False, export=False)


def test_the_run_has_exactly_its_steps() -> None:
    calendar = RunSchedule(ControlConfig(steps=3), evaluates=False)
    assert [calendar.exists(step, epoch=0) for step in range(1, 6)] == [True, True, True, False, False]


def test_the_run_has_exactly_its_epochs() -> None:
    calendar = RunSchedule(ControlConfig(epochs=2), evaluates=False)
    assert [calendar.exists(9, epoch) for epoch in range(4)] == [True, True, False, False]


def test_the_length_of_a_run_is_known_with_that_of_its_epochs() -> None:
    assert RunSchedule(ControlConfig(steps=7), evaluates=False).steps(lambda epochs: 3 * epochs) == 7
    assert RunSchedule(ControlConfig(epochs=7), evaluates=False).steps(lambda epochs: 3 * epochs) == 21


def test_every_n_steps_is_due_on_multiples_and_the_last_step_is_evaluated() -> None:
    control = ControlConfig(steps=5, evaluate=Frequency(steps=2), checkpoint=Frequency(steps=3))
    calendar = RunSchedule(control, evaluates=True)
    due = [calendar.due(step, None) for step in range(1, 6)]
    assert [d.evaluate for d in due] == [False, True, False, True, True]
    assert [d.checkpoint for d in due] == [False, False, True, False, False]


def test_every_epoch_is_due_in_the_step_that_ends_it() -> None:
    calendar = RunSchedule(ControlConfig(epochs=4, export=Frequency(epochs=2)), evaluates=False)
    assert [calendar.due(step, ended).export for step, ended in ((1, None), (2, 1), (3, None), (4, 2))] == [
        False,
        False,
        False,
        True,
    ]


def test_every_n_seconds_is_due_when_so_much_time_has_passed_since_the_last() -> None:
    clock = Clock()
    rhythm = IntervalTimer(Frequency(seconds=10), clock)
    seen = []
    for now in (5.0, 10.0, 15.0, 19.0, 20.0):
        clock.now = now
        seen.append(rhythm.due(1, None))
    assert seen == [False, True, False, False, True]


def test_the_run_stops_when_its_metric_gets_there() -> None:
    calendar = RunSchedule(ControlConfig(stop_when="eval_rew/accuracy >= 0.35", steps=9), evaluates=True)
    assert calendar.waits_for_metrics
    assert [calendar.stops_after({"eval_rew/accuracy": value}) for value in (0.3, 0.35)] == [False, True]
    assert not calendar.stops_after({"loss": 1.0})
    assert calendar.lacks({"eval_rew/reward": 1.0}) == "eval_rew/accuracy"
    assert calendar.lacks({"eval_rew/accuracy": 0.0}) == calendar.lacks({"actor_train/loss": 0.0}) == ""
