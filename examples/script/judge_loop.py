"""GRPO with a judge: a model is asked about each response, answers in words, and its mark is added to the reward."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig
from hpcrl.data.form import NUMBERS, TOKENS
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes import grpo
from hpcrl.recipes.algorithm import RoleKind, computed

QUESTION = "{}{}\nA mark for this answer, from 0 to 9: "


@dataclass(frozen=True, kw_only=True)
class Experiment(grpo.GRPOExperiment):
    judge: ModelConfig  # the model that is asked
    judging: GenerationConfig = GenerationConfig(max_new_tokens=16, greedy=True)


def judge(at):
    from hpcrl.algos.rollout import generate
    from hpcrl.algos.generate import Actor

    class Judge(Actor):
        def generate(self, work, call):
            return generate(self.engine, self.experiment.judging, self.experiment.seed, work, call)

    return Judge(at.engine(), at.experiment)


def asked(rows, actor, judge):
    reads, writes = (Tokenizer.from_file(str(Path(model.path) / "tokenizer.json")) for model in (actor, judge))
    texts = [reads.decode_batch([*map(list, rows[key])]) for key in ("prompts", "responses")]
    questions = [QUESTION.format(*both) for both in zip(*texts, strict=True)]
    return {"judge_prompts": [np.array(it.ids, np.int32) for it in writes.encode_batch(questions)]}


def marked(rows, judge):
    reads = Tokenizer.from_file(str(Path(judge.path) / "tokenizer.json"))
    marks = [re.search(r"\d", text) for text in reads.decode_batch([*map(list, rows["judge_responses"])])]
    given = zip(rows["rewards"], marks, strict=True)
    return {"judged_rewards": [row + row.dtype.type(int(mark[0]) / 9 if mark else 0) for row, mark in given]}


def recipe(e):
    """GRPO's calls; those that train read the judged rewards in the place of the rewards."""
    said = {"responses": "judge_responses", "logprobs": "judge_logprobs", "finished": "judge_finished"}
    return (
        *map(on_marks, grpo.ALGORITHM.recipe(e)),
        computed("asked", ("prompts", "responses"), ("judge_prompts",)),
        MFC("judge_gen", "judge", "generate", ("judge_prompts",), (*said.values(),), {"judge_prompts": "prompts"}, said),
        computed("marked", ("rewards", "judge_responses"), ("judged_rewards",)),
    )


def on_marks(call):
    if call.kind != "train_step":
        return call
    inputs = tuple("judged_rewards" if key == "rewards" else key for key in call.inputs)
    return msgspec.structs.replace(call, inputs=inputs, input_remap={"judged_rewards": "rewards"})


def loop(run, e):
    actor, reward, judge = run.groups("actor", "reward", "judge")
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        scored = reward.score(batch, blocking=False)
        batch = batch.union(run.compute(asked, batch, e.actor, e.judge))
        batch = batch.union(judge.generate(batch), scored)
        batch = batch.union(run.compute(marked, batch, e.judge))
        learnt = actor.update(batch)
        step.log(loss=learnt.stats["loss"], judged=batch.mean("judged_rewards"))
        if step.evaluates:
            held_out = step.held_out()
            held_out = held_out.union(actor.generate(held_out))
            step.log(held_out=reward.score(held_out).mean("rewards"))


MADE = {"judge_prompts": TOKENS, "judge_responses": TOKENS, "judge_logprobs": NUMBERS, "judge_finished": NUMBERS}
GRPO = replace(
    grpo.ALGORITHM,
    experiment=Experiment,
    recipe=recipe,
    script=loop,
    roles={**grpo.ALGORITHM.roles, "judge": RoleKind(f"{__name__}:judge", "vocabulary")},
    made={**grpo.ALGORITHM.made, **MADE, "judged_rewards": NUMBERS},
)
