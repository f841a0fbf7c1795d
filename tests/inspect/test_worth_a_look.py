"""What stands out among metrics."""

import pytest

from hpcrl.inspect.worth_a_look import worth_a_look


@pytest.mark.parametrize(
    "name, sound, odd, said",
    [
        ("critic_train/explained_variance", 0.1, -28.0, "worse than their mean"),
        ("actor_train/ratio", 1.1, 1.5, "far from the one"),
        ("actor_train/kl", 0.1, 2.0, "far from the reference"),
        ("actor_gen/finished", 0.5, 0.05, "hardly a response"),
        ("actor_train/grad_norm", 0.1, 0.0, "nothing is learnt"),
    ],
)
def test_a_metric_out_of_its_range_in_the_last_steps_is_named(name: str, sound: float, odd: float, said: str) -> None:
    def rows(first: float, last: float) -> list[dict[str, float]]:
        return [{"step": step, name: first if step <= 20 else last} for step in range(1, 31)]

    assert worth_a_look(rows(odd, sound)) == []
    (found,) = worth_a_look(rows(sound, odd))
    assert found.startswith(f"{name} is {odd:.3g} in the mean of the last 10 steps") and said in found


def test_a_held_out_reward_that_falls_while_training_rises_is_named() -> None:
    def rows(held_out: list[float], rise: float) -> list[dict[str, float]]:
        found = [{"step": step, "rew_inf/reward": rise * step} for step in range(1, 41)]
        for number, value in enumerate(held_out):
            found[10 * number + 9]["eval_rew/reward"] = value
        return found

    (said,) = worth_a_look(rows([0.3, 0.6, 0.5, 0.4], 0.01))
    assert "fallen from 0.6 in step 20 to 0.4" in said
    for held_out, rise in (([0.3, 0.4, 0.5, 0.6], 0.01), ([0.3, 0.6, 0.5, 0.4], -0.01), ([0.3, 0.5, 0.6, 0.59], 0.01)):
        assert worth_a_look(rows(held_out, rise)) == []
    assert worth_a_look([]) == []
