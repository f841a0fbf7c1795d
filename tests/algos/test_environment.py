"""Responses of several turns: what an environment answers is read and not learnt, and asked for once."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chaos import remains, whole_run
from support.hosts import run_of, write_task
from support.struck_layouts import Blow, check_struck
from support.tiny_ppo import tiny_ppo

from hpcrl.config.data import DataConfig, GroupDataConfig
from hpcrl.config.environment import MOST_TURNS, EnvironmentConfig
from hpcrl.config.experiment import to_dict
from hpcrl.config.generation import EvaluationConfig, GenerationConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.config.validate import collect
from hpcrl.controller.rehearse import Order, Trace, rehearse
from hpcrl.data.chat import ChatTemplate
from hpcrl.data.datasets import Texts
from hpcrl.data.tokens import load_tokens
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import DataError, UserCodeError
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.recipes.grpo import GRPOExperiment
from hpcrl.recipes.reinforce_plus_plus import ReinforcePlusPlusExperiment
from hpcrl.recipes.remax import RemaxExperiment
from hpcrl.recipes.rloo import RLOOExperiment
from hpcrl.rewards.response import Response, Result
from hpcrl.rewards.user_function import answering
from hpcrl.workers.environment import Environment, Talk

TOOL = """
def answer(messages, row):
    turns = [it["content"] for it in messages if it["role"] == "assistant"]
    digits = sum(map(int, filter(str.isdigit, turns[-1])))
    return f"{digits % 10}=", digits % 3 == 0, digits / 10


def size(response):
    return len(response)
"""
TURNS, LONGEST = 3, 24


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    (folder / "tool.py").write_text(TOOL)
    return folder


def talking(task: Path, workers: int = 1, **environment: Any) -> Any:
    made = tiny_ppo(task, nodes=1, workers=workers)
    own = {"function": f"{task / 'tool.py'}:answer", "max_turns": TURNS, **environment}
    return replace(
        made,
        environment=EnvironmentConfig(**own),
        reward=RewardConfig(
            components={
                "tool": {"role": "environment"},
                "size": {"function": f"{task / 'tool.py'}:size", "weight": 0.01},
            }
        ),
        generation=GenerationConfig(max_new_tokens=LONGEST, stop=("#",), slots=8),
        ppo=replace(made.ppo, old_logprobs="recomputed", minibatches=2),
    )


def parts(tokens: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    """A response's turns, the model's and the answers' in turn."""
    cuts = np.flatnonzero(np.diff(mask.astype(int))) + 1
    return np.split(tokens, cuts)


def test_a_response_is_the_models_turns_as_they_were_sampled_with_the_answers_between(task: Path) -> None:
    with run_of(talking(task)) as conductor:
        rows = conductor.step(1).rows
    tokens = load_tokens(task / "model")
    keys = ("responses", "response_mask", "turns", "environment_scores", "logprobs", "old_logprobs", "finished")
    lengths = Counter[int]()
    space: dict[str, Any] = {"__file__": str(task / "tool.py")}
    exec(TOOL, space)
    for response, mask, turns, score, logprobs, again, finished in zip(*map(rows.rows, keys), strict=True):
        said, messages = parts(response, mask), json.loads(bytes(turns))
        assert mask[0] and len(said) in (2 * i + 1 for i in range(TURNS))
        assert [it["role"] for it in messages] == ["assistant", "user"] * (len(said) // 2) + ["assistant"]
        total, chat = 0.0, []
        for i, (part, message) in enumerate(zip(said, messages, strict=True)):
            chat.append(message)
            if i % 2:
                assert tokens.decode(part) == f"\n{message['content']}\n".replace("\n", " ")
                continue
            assert message["content"] == tokens.decode(part).partition("#")[0]
            answer, done, reward = space["answer"](chat, {"id": "0"})
            total += reward
            if i + 1 < len(said):
                assert not done and messages[i + 1]["content"] == answer
            elif not done and len(said) < 2 * TURNS - 1:
                assert not finished[0] and len(response) + len(answer) + 2 >= LONGEST
        assert score[0] == pytest.approx(total) and len(response) <= LONGEST
        assert not logprobs[~mask].any()
        np.testing.assert_allclose(logprobs[mask], again[mask], atol=2e-5)
        lengths[len(said)] += 1
    assert len(lengths) > 1, lengths
    components = np.stack(rows.rows("reward_components"))
    assert components[:, 1].tolist() == [len(tokens.decode(row)) for row in rows.rows("responses")]
    assert np.array_equal(components[:, 0], np.concatenate(rows.rows("environment_scores")))


@pytest.fixture(scope="module")
def whole(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], RunDirectory]:
    return cache(lambda workers: whole_run(tmp_path_factory.mktemp("whole"), talking(task, workers)))


@pytest.mark.slow
def test_two_workers_find_what_one_finds(task: Path, whole: Callable[[int], RunDirectory]) -> None:
    one, two = (remains(whole(workers)).metrics for workers in (1, 2))
    assert one[0].keys() == two[0].keys()
    for ours, theirs in zip(one, two, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5, nan_ok=True)
    steps = [row for row in one if row["step"]]
    assert any(0 < row["environment_turn1/done"] < 1 for row in steps)
    assert all(row["environment_turn1/environment_score"] > 0 for row in steps)
    assert any("eval_environment_turn1/done" in row for row in one)


BLOWS = [
    Blow("worker-0", "worker.call", 2),
    Blow("worker-1", "worker.executed", 3),
    Blow("master", "journal.after", 6, "all"),
]


@pytest.mark.parametrize(
    "blow",
    [BLOWS[0], *(pytest.param(blow, marks=pytest.mark.slow) for blow in BLOWS[1:])],
    ids=lambda blow: f"{blow.who}-{blow.point}",
)
def test_killed_among_its_turns_a_run_ends_with_the_same_bits(
    task: Path, tmp_path: Path, whole: Callable[[int], RunDirectory], blow: Blow
) -> None:
    check_struck(tmp_path, talking(task, 2), blow, whole(2))


@pytest.mark.slow
def test_drawn_beside_the_training_it_is_the_same_run_on_one_worker_and_killed(task: Path, tmp_path: Path) -> None:
    def late(workers: int) -> Any:
        made = talking(task, workers)
        double = {role: replace(getattr(made, role), dtype="fp64") for role in ("actor", "critic", "reference")}
        return replace(made, **double, lag=1, ppo=replace(made.ppo, importance_cap=2.0))

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = whole_run(tmp_path / "one", late(1)), whole_run(tmp_path / "two", late(2))
    for ours, theirs in zip(remains(one).metrics, remains(two).metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12, nan_ok=True)
    check_struck(tmp_path, late(2), Blow("worker-1", "worker.call", 5), two)


OTHERS: dict[str, Any] = {
    "grpo": GRPOExperiment,
    "rloo": RLOOExperiment,
    "reinforce_plus_plus": ReinforcePlusPlusExperiment,
    "remax": RemaxExperiment,
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_algorithm_learns_from_the_models_own_tokens(task: Path, name: str) -> None:
    of = talking(task)
    data = DataConfig if name == "remax" else GroupDataConfig
    own = {} if name == "remax" else {"samples_per_prompt": 2}
    same = ("actor", "reference", "reward", "environment", "generation", "cluster", "control")
    experiment = OTHERS[name](
        data=data(train=of.data.train, batch_size=4, **own), **{key: getattr(of, key) for key in same}
    )
    with run_of(experiment) as conductor:
        done = conductor.step(1)
    masks, lengths = done.rows.rows("response_mask"), done.rows.length("responses")
    assert tuple(map(len, masks)) == lengths and not all(mask.all() for mask in masks)
    loss, weight = done.outcomes["actor_train"].stats["loss"]
    assert np.isfinite(loss) and weight > 0
    if name == "remax":
        assert {"base_responses", "base_rewards"} <= set(done.rows.keys)


def problems(task: Path, **sections: Any) -> str:
    return "\n".join(map(str, collect(replace(talking(task), **sections), ALL_CHECKS, [])))


def test_what_cannot_be_is_refused_and_can_be_set(task: Path) -> None:
    """What each names is changed in the next line, and nothing else is wrong."""
    assert problems(task) == ""
    several = GenerationConfig(max_new_tokens=9, evaluation=EvaluationConfig(temperature=1.0, samples_per_prompt=2))
    assert "generation.evaluation.samples_per_prompt = 2 must be 1 with" in problems(task, generation=several)
    own = replace(several, evaluation=EvaluationConfig(temperature=1.0), segment=3)
    assert "generation.segment = 3 must be null with an environment" in problems(task, generation=own)
    assert problems(task, generation=replace(own, segment=None)) == ""
    nameless, there = EnvironmentConfig(function="answer"), f"{task / 'tool.py'}:answer"
    assert 'environment.function = answer must be "file.py:NAME"' in problems(task, environment=nameless)
    assert problems(task, environment=replace(nameless, function=there)) == ""
    loose = EnvironmentConfig(kwargs={"a": 1})
    assert "environment.kwargs belongs to environment.function" in problems(task, environment=loose)
    assert problems(task, environment=replace(loose, function=there)) == ""
    alone = problems(task, environment=EnvironmentConfig())
    unset = "needs environment.function, which is not set. Set environment.function."
    assert alone == f"reward.components.tool.role = environment {unset}"
    for turns in (0, MOST_TURNS + 1):
        endless = EnvironmentConfig(function=there, max_turns=turns)
        said = problems(task, environment=endless)
        limits = f"must be between 1 and {MOST_TURNS}. Set environment.max_turns."
        assert said == f"environment.max_turns = {turns} {limits}"
    assert problems(task, environment=replace(nameless, function=there, max_turns=MOST_TURNS)) == ""


LOOP = """
from dataclasses import replace

from hpcrl.controller.dialogue import respond
from hpcrl.recipes import ppo


def loop(run, e):
    actor, environment = run.groups("actor", "environment")
    for step in run.steps():
        batch = step.batch()
        batch = {}
        batch.fetch("responses", "response_mask", "environment_scores")


PPO = replace(ppo.ALGORITHM, script=loop)
"""


def test_a_script_asks_for_all_turns_by_respond(task: Path, tmp_path: Path) -> None:
    def trace(name: str, asked: str) -> Trace:
        (tmp_path / name).write_text(LOOP.format(asked))
        experiment = replace(talking(task), algorithm=f"{tmp_path / name}:PPO")
        return rehearse(Order(to_dict(experiment), 1, 1, 1, (), 0, 60.0, str(tmp_path / "computed.npz")))

    found = trace("wrong.py", "batch.union(actor.generate(batch))")
    assert "means several calls: actor_gen, actor_turn2_gen, actor_turn3_gen" in found.error
    (advice,) = found.advice
    assert not trace("right.py", advice.partition(" by ")[2].partition(", from")[0]).error


GREEDY = """
from dataclasses import replace

from hpcrl.controller.dialogue import respond
from hpcrl.recipes import remax


def loop(run, e):
    actor, environment, reward = run.groups("actor", "environment", "reward")
    for step in run.steps():
        batch = respond(actor, environment, step.batch(), e)
        batch = batch.union(respond(actor, environment, step.batch(), e, first="base_gen"))
        actor.update(batch.union(reward.score(batch, name="rew_inf"), reward.score(batch, name="base_rew")))


REMAX = replace(remax.ALGORITHM, script=loop)
"""


def test_a_script_asks_for_the_turns_of_greedy_responses_too(task: Path, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(GREEDY)
    talks = talking(task)
    names = ("actor", "reference", "data", "environment", "reward", "generation", "control")
    experiment = RemaxExperiment(
        algorithm=f"{tmp_path / 'loop.py'}:REMAX",
        **{name: getattr(talks, name) for name in names},
    )
    found = rehearse(Order(to_dict(experiment), 1, 1, 1, (), 0, 60.0, str(tmp_path / "computed.npz")))
    assert not found.error


GAME = """
class Game:
    def __init__(self, goal):
        self.goal = goal

    def step(self, messages, row):
        return {"message": f"{row['id']}: {self.goal} of {len(messages)}"}


def silent(messages, row):
    return None, False, 0.0


def wordless(messages, row):
    return "", False, 0.0


def no_answer(messages, row):
    return 3


def together(prompts, rows):
    return []


def half_a_character(messages, row):
    return "\\ud83d", False, 0.0


def no_number(messages, row):
    return "so", False, "1"


def wordy(messages, row, cut=None):
    return ("x" * 300_000)[:cut], False, 0.0


async def later(messages, row):
    return "so", False, 1
"""


def test_a_class_is_made_once_and_its_step_answers(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(GAME)

    def answers(name: str, **kwargs: Any) -> list[Result]:
        config = EnvironmentConfig(function=f"{tmp_path / 'game.py'}:{name}", kwargs=kwargs)
        process = answering("environment", config)
        try:
            return process.score([Response("", "x", {"id": "7"}, messages=({"role": "user", "content": "x"},))])
        finally:
            process.close()

    assert answers("Game", goal=5) == [Result(0.0, message="7: 5 of 1")]
    assert answers("wordy", cut=1) == [Result(0.0, message="x")]
    assert answers("later") == [Result(1.0, message="so")]
    assert answers("wordless") == [Result(0.0, message="", done=False)]
    for name, said in (
        ("silent", "neither over nor has a message"),
        ("no_answer", r"returned 3; expected \(message, done, reward\)"),
        ("half_a_character", "UnicodeEncodeError: .* surrogates not allowed"),
        ("no_number", r"returned \('so', False, '1'\); expected \(message, done, reward\)"),
        ("together", "it takes several chats together"),
        ("wordy", "returned 300202 bytes; 262144 are the most. If it is an environment, shorten its message"),
        ("nothing", "has no function 'nothing'"),
    ):
        with pytest.raises(UserCodeError, match=said):
            answers(name)
    with pytest.raises(UserCodeError, match=r"Game is made with its kwargs, \[\]: missing a required argument: 'goal'"):
        answers("Game")


TEMPLATE = (
    "{% for it in messages %}[{{ it.role }}]{{ it.content }}{% if it.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_an_answer_stands_as_the_chat_template_has_it() -> None:
    template = ChatTemplate(TEMPLATE, {}, {})
    assert template.between({"role": "tool", "content": "7"}) == "<eos>[tool]7[assistant]"
    with pytest.raises(DataError, match="does not write an answer as it is"):
        ChatTemplate("{{ messages[0].content }}", {}, {}).between({"role": "tool", "content": "7"})


@pytest.mark.parametrize("ended", [True, False])
def test_what_ends_a_turn_stands_once_in_it(task: Path, ended: bool) -> None:
    tokens = load_tokens(task / "model")
    template = ChatTemplate(TEMPLATE.replace("[{{ it.role }}]", "").replace("[assistant]", "="), {}, {})
    role = Environment("environment", talking(task), Texts(tokens, {}), template)
    said = np.array([1, tokens.eos_id] if ended else [1], np.int32)
    talk = Talk(said, np.zeros(len(said)), np.ones(len(said), np.bool_), True, [{"role": "assistant", "content": "1"}])
    role._take(talk, Result(0.0, message="7"), False)
    role.close()
    assert talk.tokens.tolist() == [1, tokens.eos_id, 7, 11]
    assert talk.mask.tolist() == [True, ended, False, False]


@pytest.mark.parametrize(("template", "around"), [(TEMPLATE, "[user][assistant]"), (None, "\n\n")])
def test_an_answer_without_words_is_a_turn_too(task: Path, template: str | None, around: str) -> None:
    """The model reads what stands around it."""
    tokens = load_tokens(task / "model")
    chat = None if template is None else ChatTemplate(template, {}, {})
    role = Environment("environment", talking(task), Texts(tokens, {}), chat)
    said = np.array([1, tokens.eos_id], np.int32)
    talk = Talk(said, np.zeros(2), np.ones(2, np.bool_), True, [{"role": "assistant", "content": "1"}])
    role._take(talk, Result(0.0, message="", done=False), False)
    role.close()
    ((expected, _),) = tokens.encode_on([around])
    assert talk.is_open and talk.messages[1:] == [{"role": "user", "content": ""}]
    assert talk.tokens.tolist() == [1, tokens.eos_id, *expected] and len(expected)
