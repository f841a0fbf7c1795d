"""What a script's thread registers is run by the worker's, whichever comes first."""

import threading

import numpy as np
import pytest

from hpcrl.controller.computations import Computation, Computations
from hpcrl.data.form import NUMBERS
from hpcrl.errors import InternalError
from hpcrl.recipes.algorithm import computed, on_eval

FORMS = {"s": NUMBERS, "eval_s": NUMBERS}
ROWS = {"r": [np.array([1.0], np.float32), np.array([2.0], np.float32)]}


def times(rows, factor):
    return {"s": [factor * row for row in rows["r"]]}


@pytest.mark.parametrize("call", [computed("times", ("r",), ("s",)), on_eval(computed("eval_times", ("r",), ("s",)))])
def test_a_request_that_is_there_first_waits_for_its_computation(call):
    computations, made, asked = Computations(FORMS), [], threading.Event()

    def worker():
        asked.set()
        made.append(computations.run(1, call.name, ("a", "b"), ROWS))

    thread = threading.Thread(target=worker)
    thread.start()
    asked.wait()
    computations.register(1, call.name, Computation(call, times, [3]))
    thread.join()
    np.testing.assert_array_equal(made[0].data["s"], np.array([3, 6], np.float32))
    assert made[0].ids == ("a", "b")


def test_what_no_script_asks_for_is_not_waited_for_without_end():
    computations = Computations(FORMS, longest_wait_s=0.01)
    with pytest.raises(InternalError, match="step 2 is to compute times; its script has not asked for it"):
        computations.run(2, "times", (), {"r": []})


def test_what_is_executed_is_forgotten_and_other_calls_may_be_named():
    computations = Computations(FORMS, longest_wait_s=0.01)
    computations.register(1, "times", Computation(computed("times", ("r",), ("s",)), times, [1]))
    computations.forget(1, "actor_gen")
    assert computations.run(1, "times", (), {"r": []}).data["s"].dtype == np.float32
    computations.forget(1, "times")
    with pytest.raises(InternalError):
        computations.take(1, "times")
