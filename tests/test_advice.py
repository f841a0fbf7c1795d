"""Every advice of a message is followed here, or in the test that is named, and gets further.

An advice is known by its file and by its words, with {} where a value stands. One that nobody follows fails the test.
"""

import ast
import dataclasses
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import script_advice
from support.experiments import KNOWN, QWEN2_TINY, load_config, ppo_values, values_of, write_config, write_inputs
from support.made_run import MadeRun
from support.rows import fingerprints, open_datasets
from support.sources import words_of
from support.templates import MARKED, chat_tokenizer
from support.tiny_tokenizer import train_tokenizer
from tokenizers import Tokenizer
from tokenizers.normalizers import Replace

from hpcrl.cli.main import main
from hpcrl.config import yaml_file
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.load import OF_A_FORK, change_settings
from hpcrl.config.reward import Component, RewardConfig
from hpcrl.config.slurm import SlurmConfig
from hpcrl.data import user_code
from hpcrl.data.contents import refuse_written, stamp_of
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.rows.lines import ANSWERED
from hpcrl.data.samples import SequenceSample
from hpcrl.data.source_files import row_maker
from hpcrl.data.tokens import load_tokens
from hpcrl.doctor.measure import MeasureRequest, measure
from hpcrl.durable.append_log import DiskFullError
from hpcrl.durable.files import Files
from hpcrl.durable.keys import read_key
from hpcrl.durable.paths import refuse_unusable
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode, HpcrlError
from hpcrl.families.reader import read_config
from hpcrl.launch.launcher import launcher_problems
from hpcrl.launch.registry import Registry
from hpcrl.launch.slurm.launcher import SlurmLauncher
from hpcrl.launch.slurm.render import Target, read_template, render
from hpcrl.launch.slurm.site import SlurmSite
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig
from hpcrl.rewards import by_source
from hpcrl.rewards.service import Service

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hpcrl"

TAKES_ADVICE = {"Problem": 2, "refused": 1, "read_document": 1, "misuse": 1}
"""Callables by name, and which of their arguments is the advice; of every error of hpcrl's own it is the second."""


def texts_in(advice: ast.expr) -> Iterator[str]:
    """The text itself, either of two, or those that a function is given which makes the advice of them."""
    either = (advice.body, advice.orelse) if isinstance(advice, ast.IfExp) else (advice,)
    for node in advice.args if isinstance(advice, ast.Call) else either:
        if words := words_of(node):
            yield words


@cache
def advices() -> frozenset[str]:
    """`file: words` of all advices in the source."""
    return frozenset(
        f"{path.relative_to(PACKAGE)}: {words}" for path in PACKAGE.rglob("*.py") for words in given_in(path)
    )


def given_in(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name.endswith("Error")}
    errors |= imported_errors(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            place = TAKES_ADVICE.get(name, 1 if name in errors or is_initialiser(node) else None)
            if name != "MissingExtraError" and place is not None and len(node.args) > place:
                yield from texts_in(node.args[place])


def imported_errors(tree: ast.AST) -> set[str]:
    """The names that come from hpcrl and end like an error."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "")[:5] == "hpcrl"]
    return {alias.name for node in found for alias in node.names if alias.name.endswith("Error")}


def is_initialiser(call: ast.Call) -> bool:
    """`super().__init__(text, advice)` of an error."""
    inner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__" else None
    return isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "super"


def assert_advised(error: HpcrlError, advice: str) -> None:
    pattern = re.escape(advice.partition(": ")[2]).replace(re.escape("{}"), ".*")
    assert any(re.fullmatch(pattern, each, re.DOTALL) for each in error.advice), (advice, error.advice)
    assert all(each in str(error) for each in error.advice)


# ── configurations ────────────────────────────────────────────────────────────────────────────────────────────────────
GROUPS = ["algorithm=toy", "toy.samples_per_row=2", "toy.filter_groups.metric=reward"]
FOLLOWING = ["ppo.kl.mode=reward", "ppo.kl.reference_ema.decay=0.9"]


def scored(component: str, name: str = "a") -> list[str]:
    """A reward of one component."""
    return ["reward.function=null", f"reward.components={{{name}: {component}}}"]


JUDGED = scored("{role: reward_model}")
ASKED = [*scored("{role: judge}"), "judge.path=model"]
FLYING = ["generation.in_flight=10", "generation.segment=4", "generation.max_new_tokens=16"]
IN_HALVES = [
    *("cluster.nodes=2", "data.batch_size=2", "ppo.minibatches=1"),
    *("actor.layout=d4", "critic.layout=d2t2", "reference.layout=d2t2"),
]
"""Four workers, with samples for two data-parallel parts; the critic and the reference have no more."""
BY_JUDGE = [*JUDGED, "reward_model.path=judge"]

CONFIGURATIONS: Sequence[tuple[str, list[str], list[str]]] = (
    ("config/load.py: Set {}.", ["seed=many"], ["seed=3"]),
    (
        'config/load.py: Close every brace, and quote what has brackets: {mesh: "node[0-1]"}.',
        ["calls={actor_gen: {mesh: node[0]}}"],
        ['calls={actor_gen: {mesh: "node[0]"}}'],
    ),
    (
        'config/load.py: Close every brace, and quote what has brackets: {mesh: "node[0-1]"}.',
        ["calls={actor_gen: {mesh: 0}"],
        ["calls={actor_gen: {mesh: 0}}"],
    ),
    ("config/load.py: Set {}.", ["reward.kwargs={1: .nan}"], ["reward.kwargs={}"]),
    ("config/load.py: The nearest is {}.", ["cluster.nods=2"], ["-cluster.nods=2", "cluster.nodes=2"]),
    (
        "placement/node_counts.py: Set on_nodes.",
        ["cluster.nodes=1-2", 'on_nodes={"2": {actor.layuot: d2t2}}'],
        ["-on_nodes", 'on_nodes={"2": {actor.layout: d4}}'],
    ),
    ("placement/check_cuts.py: Leave {}.experts out.", ["actor.experts=whole"], ["-actor.experts=whole"]),
    (
        "config/load.py: Leave it out; `hpcrl submit --help --algorithm {}` lists all settings.",
        ["wandb=on"],
        ["-wandb=on"],
    ),
    (
        "config/load.py: Write --{} '{}'.",
        ["calls.actor_gen.layout=d2"],
        ["-calls.actor_gen.layout=d2", "calls={actor_gen: {layout: d2}}"],
    ),
    ("config/load.py: Set what is in it, as in {}.", ["cluster=2"], ["-cluster=2", "cluster.nodes=2"]),
    ("config/load.py: Write --{} VALUE.", ["seed"], ["-seed", "seed=3"]),
    ("config/load.py: Set algorithm{}.", ["algorithm=pppo"], ["-algorithm=pppo", "algorithm=ppo"]),
    ("config/validate.py: Set {}.", ["cluster.nodes=0"], ["cluster.nodes=1"]),
    ("config/validate.py: Set {}.", ["data.train=none.jsonl"], ["data.train=rows.jsonl"]),
    ("config/validate.py: Set {}.", ["data.tokenizer=none"], ["data.tokenizer=model"]),
    (
        "config/validate.py: Raise cluster.{} or lower cluster.heartbeat_s.",
        ["cluster.lost_after_s=2"],
        ["cluster.lost_after_s=20"],
    ),
    (
        "config/validate.py: Raise cluster.{} or lower cluster.heartbeat_s.",
        ["cluster.lost_after_s=2"],
        ["cluster.heartbeat_s=0.5"],
    ),
    (
        "config/validate.py: Set cluster.slurm.container_image.",
        ["cluster.slurm.container=apptainer"],
        ["cluster.slurm.container_image=x.sif"],
    ),
    (
        "config/validate.py: Set cluster.template; `hpcrl template array` prints one to begin with.",
        ["cluster.template=none.sbatch"],
        ["cluster.template=array.sbatch"],
    ),
    ("config/validate.py: Set cluster.slurm.{}.", ["cluster.slurm.flags=[odd]"], ["cluster.slurm.flags=[--odd]"]),
    ("config/validate.py: Set data.chat_template.", ["data.chat_template=none"], ["data.chat_template=rows.jsonl"]),
    ("config/validate.py: Set data.fields to names of these.", ["data.fields={x: y}"], ["data.fields={prompt: y}"]),
    ("placement/check.py: Leave out {} or {}.", ["reward.workers=1", "reward.mesh=0"], ["-reward.mesh=0"]),
    ("placement/check.py: Leave out {} or {}.", ["reward.workers=1", "reward.mesh=0"], ["-reward.workers=1"]),
    ("config/validate.py: Set one of them.", ["data.train=null"], ["data.train=rows.jsonl"]),
    (
        "config/validate.py: Set data.sources.",
        ["data.train=null", "data.sources={a: {weight: 1}}"],
        ["data.sources={a: {path: rows.jsonl}}"],
    ),
    (
        "config/validate.py: Set control.steps in its place.",
        ["data.train=null", "data.sources={a: {path: rows.jsonl}}", "control.steps=null", "control.epochs=2"],
        ["control.epochs=null", "control.steps=2"],
    ),
    (
        "recipes/check.py: Set one and leave the other null.",
        ["data.batch_size=null"],
        ["data.batch_size=8"],
    ),
    (
        "recipes/check.py: Leave one of the two out, and set data.batch_size.",
        ["algorithm=sft", "data.balance=true", "data.batch_size=null", "data.batch_tokens=64"],
        ["-data.batch_tokens=64", "-data.balance=true", "data.batch_size=8"],
    ),
    (
        "recipes/check.py: Leave one of the two out, and set data.batch_size.",
        ["algorithm=sft", "data.balance=true", "data.batch_size=null", "data.batch_tokens=64"],
        ["-data.batch_tokens=64", "data.batch_size=8"],
    ),
    (
        "recipes/check.py: Leave data.balance out, or read one source.",
        ["algorithm=sft", "data.balance=true", "data.train=null", "data.sources={a: {path: rows.jsonl}}"],
        ["-data.balance=true"],
    ),
    (
        "recipes/check.py: Leave data.balance out, or read one source.",
        ["algorithm=sft", "data.balance=true", "data.train=null", "data.sources={a: {path: rows.jsonl}}"],
        ["data.sources={}", "data.train=rows.jsonl"],
    ),
    (
        "recipes/check.py: Set data.batch_size in its place.",
        ["data.batch_tokens=64", "data.batch_size=null"],
        ["-data.batch_tokens=64", "data.batch_size=8"],
    ),
    ("recipes/check.py: Leave data.balance out.", ["data.balance=true"], ["-data.balance=true"]),
    ("config/validate.py: Set generation.stop.", ["generation.stop=['']"], ["generation.stop=[Q]"]),
    ("config/validate.py: Set one and leave the other null.", ["control.epochs=2"], ["control.steps=null"]),
    (
        "config/validate.py: Set control.stop_when.",
        ["control.stop_when=soon"],
        ["control.stop_when=actor_train/loss < 1"],
    ),
    (
        "config/validate.py: Set data.evaluate or leave control.evaluate out.",
        ["control.evaluate.steps=2"],
        ["data.evaluate=rows.jsonl"],
    ),
    (
        "config/validate.py: Set {}control.evaluate.",
        ["control.stop_when=eval_rew/accuracy > 1"],
        ["data.evaluate=rows.jsonl", "control.evaluate.steps=2"],
    ),
    ("config/validate.py: Set {}.path.", ["critic.path=none"], ["critic.path=model"]),
    (
        "config/validate.py: Lower the first or raise the second.",
        ["algorithm=sft", "generation.min_new_tokens=17", "generation.max_new_tokens=16"],
        ["generation.min_new_tokens=2"],
    ),
    (
        "config/validate.py: Lower the first or raise the second.",
        ["algorithm=sft", "generation.min_new_tokens=17", "generation.max_new_tokens=16"],
        ["generation.max_new_tokens=30"],
    ),
    (
        "config/validate.py: Set {}.temperature.",
        ["generation.evaluation.samples_per_prompt=2"],
        ["generation.evaluation.temperature=1"],
    ),
    (
        "config/validate.py: Raise {}.samples_per_prompt.",
        ["generation.evaluation.temperature=1", "generation.evaluation.pass_at=[4]"],
        ["generation.evaluation.samples_per_prompt=4"],
    ),
    ("config/validate.py: Set {}.components.{}.", scored("{role: actor}"), scored("{function: exact}")),
    ("config/judge.py: Set {}.", scored("{role: judge}"), ["judge.path=model"]),
    (
        "recipes/segments.py: Set {} to null.",
        [*ASKED, "judge.generation.segment=8"],
        ["judge.generation.segment=null"],
    ),
    (
        "recipes/segments.py: Set {} to null.",
        [*ASKED, "judge.generation.in_flight=8"],
        ["judge.generation.in_flight=null"],
    ),
    (
        "recipes/segments.py: Set lag and {}, or set {} to null.",
        ["generation.refresh=1"],
        ["lag=1", "generation.segment=8", "generation.max_new_tokens=16"],
    ),
    (
        "recipes/segments.py: Set {} to {} or more, or to null.",
        ["generation.max_new_tokens=70", "generation.segment=1", "data.max_prompt_tokens=20"],
        ["generation.segment=2"],
    ),
    *(
        (f"recipes/in_flight.py: {advice}", [*FLYING, *wrong], right)
        for advice, wrong, right in (
            ("Raise {}, to a quarter more than that, say.", ["generation.in_flight=1"], ["generation.in_flight=10"]),
            ("Set generation.segment to a few hundred tokens.", ["generation.segment=null"], ["generation.segment=4"]),
            (
                "Set {} or leave generation.max_age out.",
                ["generation.in_flight=null", "generation.max_age=2"],
                ["generation.in_flight=10"],
            ),
            ("Leave {} out.", ["algorithm=sft"], ["generation.in_flight=null"]),
            (
                "Set one of them to null.",
                ["algorithm=grpo", "data.samples_per_prompt=2", "grpo.filter_groups.metric=accuracy"],
                ["grpo.filter_groups.metric=null"],
            ),
        )
    ),
    ("config/judge.py: Set {}.", [*ASKED, "judge.mark=a"], ["judge.mark=(a)"]),
    (
        "config/judge.py: Set {}; a brace that is meant is written twice.",
        [*ASKED, "judge.question={a}"],
        ["judge.question={{a}}{response}"],
    ),
    ("config/judge.py: Set {} or {}.", [*ASKED, "judge.least=10"], ["judge.least=9"]),
    ("config/classifier.py: Set {}.", JUDGED, ["reward_model.path=judge"]),
    ("config/classifier.py: Set {}.", [*JUDGED, "reward_model.path=none"], ["reward_model.path=judge"]),
    ("config/classifier.py: Set {}.", [*BY_JUDGE, "reward_model.label=x"], ["reward_model.label=null"]),
    (
        "config/classifier.py: Set {} to one of them.",
        [*JUDGED, "reward_model.path=judges"],
        ["reward_model.label=good"],
    ),
    ("config/validate_reward.py: Set {}.", ["reward.function=odd"], ["reward.function=exact"]),
    ("config/validate_reward.py: Set {}.", ["reward.function=none.py:f"], ["reward.function=exact"]),
    ("config/validate_reward.py: Set {}.", ["reward.kwargs={method: odd}"], ["reward.kwargs={method: strict}"]),
    *(
        ("config/validate_reward.py: Set {}.", scored(wrong), scored("{function: exact}"))
        for wrong in (
            "exact",
            "{functon: exact}",
            "{role: [reward_model]}",
            "{}",
            "{service: here}",
            "{function: exact, role: reward_model}",
            "{function: length}",
        )
    ),
    (
        "config/validate_reward.py: Rename it in {}.",
        scored("{function: exact}", "accuracy"),
        scored("{function: exact}", "right"),
    ),
    (
        "config/validate_reward.py: Set one and leave the other out{}.",
        ["reward.components={a: {function: exact}}"],
        ["reward.function=null"],
    ),
    (
        "config/validate_reward.py: Set one and leave the other out{}.",
        ["reward.function=null"],
        ["reward.function=exact"],
    ),
    (
        "config/validate_reward.py: Write it into {}.NAME.",
        [*scored("{function: gsm8k}"), "reward.kwargs={method: flexible}"],
        ["-reward.kwargs={method: flexible}", *scored("{function: gsm8k, kwargs: {method: flexible}}")],
    ),
    (
        "config/validate_reward.py: Set {}.right_component, or leave it out: accuracy then goes by the reward.",
        [*scored("{function: exact}"), "reward.right_component=b"],
        ["reward.right_component=a"],
    ),
    (
        "config/validate_reward.py: Set {}.right_component, or leave it out: accuracy then goes by the reward.",
        ["reward.right_component=b"],
        ["-reward.right_component=b"],
    ),
    (
        "placement/check_layouts.py: Change {}, {} or cluster.nodes.",
        ["actor.layout=d4"],
        ["cluster.nodes=2", *["critic.layout=d4"]],
    ),
    ("placement/check_layouts.py: Change {}, {} or cluster.nodes.", ["actor.layout=d4"], ["actor.layout=d2"]),
    ("placement/check_layouts.py: Set {}.", ["actor.layout=2x2"], ["actor.layout=d2"]),
    ("placement/check_layouts.py: Set {} or cluster.nodes.", ["reward.mesh=0-2"], ["reward.mesh=0-1"]),
    ("placement/check_layouts.py: Set {} or cluster.nodes.", ["reward.mesh=0-2"], ["cluster.nodes=2"]),
    ("placement/check_layouts.py: Raise {}, or {}.", ["cluster.nodes=5"], ["data.batch_size=10"]),
    (
        "placement/check_layouts.py: Raise {}, or {}.",
        [*IN_HALVES, "actor.layout=d2t2"],
        ["reward.mesh=0-1"],
    ),
    (
        "placement/check_layouts.py: Raise {}, or {}.",
        [*IN_HALVES, "reward.mesh=0"],
        ["actor.layout=d2t2"],
    ),
    (
        "placement/check_layouts.py: Raise {}, or {}.",
        [*IN_HALVES, "reward.mesh=0"],
        ["actor.mesh=0-1", "actor.layout=d2"],
    ),
    (
        "placement/check.py: Lower generation.max_new_tokens or data.max_prompt_tokens.",
        ["generation.max_new_tokens=120"],
        ["generation.max_new_tokens=112"],
    ),
    (
        "placement/check.py: Lower generation.max_new_tokens or data.max_prompt_tokens.",
        ["generation.max_new_tokens=120"],
        ["data.max_prompt_tokens=8"],
    ),
    (
        "placement/check.py: Lower generation.max_new_tokens.",
        ["data.max_prompt_tokens=null", "generation.max_new_tokens=128"],
        ["generation.max_new_tokens=64"],
    ),
    ("placement/check.py: Set {}.", ["critic.path=small"], ["critic.path=model"]),
    (
        "placement/check.py: Set {} to a model of the same shape.",
        [*FOLLOWING, "reference.path=small"],
        ["reference.path=model"],
    ),
    ("placement/check_calls.py: Rename or leave out {}.", ["calls={actor_gne: {}}"], ["calls={actor_gen: {}}"]),
    ("placement/check_calls.py: Rename or leave out {}.", ["calls={actor_gne: {}}"], ["calls={}"]),
    (
        "placement/check_calls.py: Set {}, or {}.backend.",
        ["calls={critic_inf: {backend: fdsp}}"],
        ["calls={critic_inf: {backend: fsdp}}"],
    ),
    (
        "placement/check_calls.py: Set {}, or {}.backend.",
        ["calls={critic_inf: {backend: fdsp}}"],
        ["calls={}", "critic.backend=fsdp"],
    ),
    ("placement/check_calls.py: Set {}.", ["calls={actor_gen: d2}"], ["calls={actor_gen: {layout: d2}}"]),
    (
        "placement/check_calls.py: Set {} or {}.backend, and leave out {}.",
        ["calls={critic_train: {layout: d1, mesh: 0}}"],
        ["calls={}", "critic.layout=d1", "critic.mesh=0"],
    ),
    (
        "placement/check_calls.py: Set {} or {}.backend, and leave out {}.",
        ["calls={critic_train: {backend: fsdp}}"],
        ["calls={}", "critic.backend=fsdp"],
    ),
    (
        "placement/check_calls.py: Set {} and {}, and leave out {}.",
        ["calls={rew_inf: {layout: d1, mesh: 0}}"],
        ["calls={}", "reward.layout=d1", "reward.mesh=0"],
    ),
    (
        "placement/check_calls.py: Leave out {}.",
        ["calls={actor_gen: {between: drop}}"],
        ["calls={}"],
    ),
    (
        "placement/check_calls.py: Set {}.layout and {}.mesh in the place of {}.",
        ["ppo.kl.mode=reward", "calls={ref_inf: {layout: d1, mesh: 0}}"],
        ["calls={}", "reference.layout=d1", "reference.mesh=0"],
    ),
    (
        "placement/abilities.py: Set {} to {}, or leave out {}.lora.",
        ["actor.lora.rank=4", "actor.backend=zero1"],
        ["actor.backend=native"],
    ),
    (
        "placement/abilities.py: Set {} to {}, or leave out {}.lora.",
        ["actor.lora.rank=4", "actor.backend=zero1"],
        ["actor.lora.rank=null"],
    ),
    (
        "placement/check_adapters.py: Set {}.lora.rank, or leave out {}.",
        ["reference.of=actor"],
        ["actor.lora.rank=4"],
    ),
    (
        "placement/check_adapters.py: Set {}.lora.rank, or leave out {}.",
        ["reference.of=actor"],
        ["reference.of=null"],
    ),
    (
        "placement/check_adapters.py: Set {}.{} to {}.",
        ["actor.lora.rank=4", "reference.of=actor", "reference.dtype=bf16"],
        ["reference.dtype=fp32"],
    ),
    (
        "placement/check_adapters.py: Set {}.lora.rank, or leave out {}.lora.{}.",
        ["actor.lora.alpha=32"],
        ["actor.lora.rank=4"],
    ),
    (
        "placement/check_adapters.py: Set {}.lora.rank, or leave out {}.lora.{}.",
        ["actor.lora.targets=[q_proj]"],
        ["actor.lora.rank=4"],
    ),
    (
        "placement/check_adapters.py: Set {}.targets.",
        ["actor.lora.rank=4", "actor.lora.targets=[q]"],
        ["actor.lora.targets=[q_proj]"],
    ),
    (
        "placement/check_adapters.py: Set {}{}.",
        ["actor.lora.rank=4", "actor.lora.path=nowhere"],
        ["actor.lora.path=null"],
    ),
    (
        "placement/check_adapters.py: Leave out {}, or {}.of.",
        ["actor.lora.rank=4", "reference.of=actor", "reference.layout=d2"],
        ["reference.layout=null"],
    ),
    (
        "placement/check_adapters.py: Leave out {}.of{}.",
        [*FOLLOWING, "actor.lora.rank=4", "reference.of=actor"],
        ["ppo.kl.reference_ema.decay=null"],
    ),
    (
        "placement/check_adapters.py: Leave out calls.{}, or {}.of.",
        ["ppo.kl.mode=reward", "actor.lora.rank=4", "reference.of=actor", "calls={ref_inf: {layout: d1, mesh: 0}}"],
        ["calls={}"],
    ),
    (
        "placement/check.py: Set {} to {}.",
        [*FOLLOWING, "actor.model=transformers"],
        ["reference.model=transformers"],
    ),
    ("placement/check.py: Leave allocation out.", ["algorithm=toy", "allocation=d2"], ["-allocation=d2"]),
    ("placement/check.py: Set {}.", ["allocation=d2d2"], ["allocation=d2"]),
    ("placement/check.py: Set {} or cluster.nodes.", ["allocation=d4"], ["allocation=d2"]),
    ("placement/check.py: Set {} or cluster.nodes.", ["allocation=d4"], ["cluster.nodes=2"]),
    ("placement/abilities.py: Set {} to d{}.", ["reward.layout=t2"], ["reward.layout=d2"]),
    (
        "placement/abilities.py: Set {} to d{}, or {} to {}.",
        ["actor.backend=fsdp", "actor.layout=t2"],
        ["actor.layout=d2"],
    ),
    (
        "placement/abilities.py: Set {} to d{}, or {} to {}.",
        ["actor.backend=fsdp", "actor.layout=t2"],
        ["actor.backend=native"],
    ),
    (
        "placement/abilities.py: Leave out {}, or set {} to {}.",
        ["actor.reduce=micro_batch"],
        ["actor.reduce=update"],
    ),
    (
        "placement/abilities.py: Leave out {}, or set {} to {}.",
        ["actor.reduce=micro_batch"],
        ["actor.backend=fsdp"],
    ),
    (
        "placement/abilities.py: Leave out {} or {}.lora.",
        ["actor.lora.rank=4", "actor.backend=fsdp", "actor.reduce=micro_batch"],
        ["actor.reduce=update"],
    ),
    (
        "placement/abilities.py: Leave out {} or {}.lora.",
        ["actor.lora.rank=4", "actor.backend=fsdp", "actor.reduce=micro_batch"],
        ["actor.lora.rank=null"],
    ),
    (
        "placement/abilities.py: Leave out {} or {}.",
        ["actor.offload=optimizer", "actor.between.optimizer=host"],
        ["actor.between.optimizer=keep"],
    ),
    (
        "placement/abilities.py: Leave out {} or {}.",
        ["actor.offload=optimizer", "actor.between.optimizer=host"],
        ["actor.offload=none"],
    ),
    ("placement/abilities.py: Set {} to d{}.", [*BY_JUDGE, "reward_model.layout=p2"], ["reward_model.layout=d2"]),
    (
        "placement/judges.py: Set {} to keep.",
        [*BY_JUDGE, "reward_model.between.parameters=host"],
        ["reward_model.between.parameters=keep"],
    ),
    ("plugins.py: Set {}{}.", ["actor.backend=nativ"], ["actor.backend=native"]),
    ("plugins.py: Set {}.", ["actor.family=none.py:F"], ["actor.family=qwen2"]),
    ("plugins.py: Fix the file or set {}.", ["actor.family=own.py:F"], ["actor.family=qwen2"]),
    (
        "recipes/check.py: Set control.profile.calls to some of these.",
        ["control.profile.steps=[3]", "control.profile.calls=[actor_trian]"],
        ["control.profile.calls=[actor_train]"],
    ),
    (
        "recipes/check.py: Set control.stop_when{}.",
        ["control.stop_when=actor_trian/loss < 1"],
        ["control.stop_when=actor_train/loss < 1"],
    ),
    (
        "recipes/check.py: Set control.stop_when{}.",
        ["control.stop_when=actor_train/los < 1"],
        ["control.stop_when=actor_train/loss < 1"],
    ),
    ("recipes/policy.py: Lower {}.minibatches or raise data.batch_size.", ["ppo.minibatches=9"], ["ppo.minibatches=8"]),
    ("recipes/policy.py: Lower {}.minibatches or raise data.batch_size.", ["ppo.minibatches=9"], ["data.batch_size=9"]),
    (
        "recipes/policy.py: Set {}.kl.coef or {}.kl.adaptive.",
        ["ppo.kl.adaptive=true", "ppo.kl.coef=0"],
        ["ppo.kl.coef=0.1"],
    ),
    (
        "recipes/policy.py: Set {}.kl.coef or {}.kl.adaptive.",
        ["ppo.kl.adaptive=true", "ppo.kl.coef=0"],
        ["ppo.kl.adaptive=false"],
    ),
    (
        "recipes/policy.py: Raise {}.kl.horizon.",
        ["ppo.kl.adaptive=true", "ppo.kl.horizon=1"],
        ["ppo.kl.horizon=1000"],
    ),
    (
        "recipes/policy.py: Set {}.old_logprobs to recomputed, or {}.importance_cap to null.",
        ["ppo.importance_cap=2"],
        ["ppo.old_logprobs=recomputed"],
    ),
    (
        "recipes/policy.py: Set {}.old_logprobs to recomputed, or {}.importance_cap to null.",
        ["ppo.importance_cap=2"],
        ["ppo.importance_cap=null"],
    ),
    ("recipes/policy.py: Set {}.cut.", ["algorithm=grpo", "grpo.cut=bootstrap"], ["grpo.cut=penalty"]),
    (
        "recipes/policy.py: Raise data.samples_per_prompt.",
        ["algorithm=grpo", "data.samples_per_prompt=1"],
        ["data.samples_per_prompt=2"],
    ),
    (
        "recipes/policy.py: Lower {}.overlong_buffer.",
        ["ppo.overlong_buffer=17", "generation.max_new_tokens=16"],
        ["ppo.overlong_buffer=16"],
    ),
    (
        "recipes/check.py: Set control.stop_when or {}.",
        ["control.stop_when=actor_train/entropy < 1"],
        ["ppo.entropy_coef=0.01"],
    ),
    (
        "recipes/check.py: Set control.stop_when or {}.",
        ["control.stop_when=actor_train/kl > 1", "ppo.kl.mode=none"],
        ["control.stop_when=actor_train/loss < 0"],
    ),
    ("recipes/texts.py: Set generation.{}.", ["generation.top_p=0.5"], ["generation.top_p=1"]),
    (
        "recipes/texts.py: Set data.samples_per_prompt.",
        ["algorithm=dpo", "data.samples_per_prompt=2"],
        ["data.samples_per_prompt=1"],
    ),
    (
        "recipes/texts.py: Set {}.metric.",
        ["algorithm=grpo", "data.samples_per_prompt=2", "grpo.filter_groups.metric=odd"],
        ["grpo.filter_groups.metric=accuracy"],
    ),
    (
        "config/validate_reward.py: Set {}.",
        ["algorithm=grpo", "data.samples_per_prompt=2", "grpo.filter_groups.metric=a", *scored("exact")],
        scored("{function: exact}"),
    ),
    ("recipes/toy.py: Set toy.filter_groups.metric.", [*GROUPS, "toy.filter_groups.metric=odd"], GROUPS),
    (
        "recipes/check.py: Set control.steps in its place.",
        [*GROUPS, "control.epochs=2", "control.steps=null"],
        ["-control.epochs=2", "control.steps=2"],
    ),
    (
        "recipes/check.py: Have several samples of a row, or leave {} out.",
        ["algorithm=toy", "toy.filter_groups.metric=reward"],
        ["toy.samples_per_row=2"],
    ),
    (
        "recipes/check.py: Have several samples of a row, or leave {} out.",
        ["algorithm=toy", "toy.filter_groups.metric=reward"],
        ["-toy.filter_groups.metric=reward"],
    ),
    (
        "recipes/dpo.py: Set dpo.label_smoothing.",
        ["algorithm=dpo", "dpo.loss=ipo", "dpo.label_smoothing=0.1"],
        ["dpo.label_smoothing=0"],
    ),
    (
        "recipes/generate.py: Set one of the two.",
        ["algorithm=generate", "generation.greedy=true", "data.samples_per_prompt=2"],
        ["generation.greedy=false"],
    ),
    (
        "recipes/generate.py: Set one of the two.",
        ["algorithm=generate", "generation.greedy=true", "data.samples_per_prompt=2"],
        ["data.samples_per_prompt=1"],
    ),
    (
        "recipes/sft.py: Set data.samples_per_prompt.",
        ["algorithm=sft", "data.samples_per_prompt=2"],
        ["data.samples_per_prompt=1"],
    ),
    ("recipes/toy.py: Lower the first.", ["algorithm=toy", "toy.batch_size=9", "toy.rows=8"], ["toy.batch_size=8"]),
)
"""Advice, what is wrong, and what it says to do; a word that begins with - takes the wrong setting back."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "array.sbatch").touch()
    (tmp_path / "own.py").write_text("F = 3\n")
    small = tmp_path / "small"
    small.mkdir()
    (small / "config.json").write_text(json.dumps(QWEN2_TINY | {"vocab_size": 32}))
    (small / "model.safetensors").touch()
    for name, labels in ("judge", ["score"]), ("judges", ["bad", "good"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"id2label": dict(enumerate(labels))}))
    return tmp_path


def load(folder: Path, settings: Sequence[str]) -> None:
    algorithm = next((word[10:] for word in settings if word.startswith("algorithm=")), "ppo")
    path = write_config(folder / "c.yaml", values_of(algorithm) if algorithm in KNOWN else ppo_values())
    load_config(path, settings, (*ALL_CHECKS, launcher_problems))


@pytest.mark.parametrize(("advice", "wrong", "right"), CONFIGURATIONS)
def test_a_configuration_that_follows_its_advice_is_taken(
    folder: Path, advice: str, wrong: list[str], right: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(folder, wrong)
    assert_advised(refused.value, advice)
    back = {word[1:] for word in right if word.startswith("-")}
    load(folder, [*(word for word in wrong if word not in back), *(word for word in right if not word.startswith("-"))])


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────
COMMANDS: Sequence[tuple[str, str, str]] = (
    ("cli/main.py: The commands are {}.", "stauts RUN", "status RUN"),
    ("cli/arguments.py: The nearest is {}.", "submit c.yaml --dettach yes", "submit --help"),
    ("cli/arguments.py: See {} --help.", "status", "status --help"),
    ("cli/arguments.py: Give one of them.", "submit c.yaml --wait --detach", "plan c.yaml"),
    ("cli/doctor.py: Give one of them.", "doctor --in-job --no-jobs", "doctor --help"),
    ("cli/doctor.py: Give 1 or more.", "doctor --nodes 0", "doctor --nodes 1 --help"),
    ("cli/draw.py: Name another file.", "draw c.yaml --out graph.txt", "draw c.yaml --out graph.dot"),
    (
        "cli/outputs.py: Name a place where you can write.",
        "draw c.yaml --out none/graph.dot",
        "draw c.yaml --out x.dot",
    ),
    ("cli/arguments.py: The nearest is {}.", "status tiwn", "status a/twin"),
    ("cli/arguments.py: Name its directory; `hpcrl list` shows your runs.", "status zzz", "list"),
    ("cli/list.py: Name a run_root.", "list none", "list runs"),
    ("cli/mirror.py: Give one of {}.", "mirror RUN --to mlflow", "mirror RUN --to tensorboard"),
    ("cli/logs.py: Name one of those who have: {}.", "logs RUN --worker worker-9", "logs RUN --worker master"),
    ("cli/log_filter.py: Correct it, or escape it with a backslash.", "logs RUN --grep (", "logs RUN --grep \\("),
    ("cli/log_filter.py: Give one of {}.", "logs RUN --level loud", "logs RUN --level error"),
    (
        "cli/log_filter.py: Give a span like 10m, a time like 14:30 or a date like 2026-01-31T14:30.",
        "logs RUN --since soon",
        "logs RUN --since 2026-01-31T14:30",
    ),
    ("cli/log_filter.py: There are: {}.", "logs RUN --attempt 99", "logs RUN --attempt 0"),
    ("cli/log_filter.py: Give one up to that.", "logs RUN --step 99999", "logs RUN --step 1"),
    ("cli/template.py: Name one of {}.", "template aray", "template array"),
    ("config/yaml_file.py: Give the path of a YAML file.", "plan none.yaml", "plan c.yaml"),
    ("config/yaml_file.py: Correct the YAML there.", "plan twice.yaml", "plan c.yaml"),
    ("config/yaml_file.py: Correct it.", "plan bytes.yaml", "plan c.yaml"),
    ("config/yaml_file.py: Begin it with `algorithm: ppo` and so on.", "plan list.yaml", "plan c.yaml"),
    ("config/load.py: Set algorithm.", "plan empty.yaml", "plan c.yaml"),
    ("durable/place.py: Name the directory of one; `hpcrl list` shows them.", "status runs", "status RUN"),
    ("durable/place.py: Name the directory of one; `hpcrl list` shows them.", "status c.yaml", "list"),
    ("launch/registry.py: Name its directory.", "status twin", "status a/twin"),
)
"""Advice, a command that gets it, and one that follows it; of those that would start processes, its help."""


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configurations right and wrong, a run, and two of one name."""
    monkeypatch.setenv("HPCRL_STATE", str(folder / "state"))
    write_config(folder / "c.yaml", ppo_values())
    (folder / "twice.yaml").write_text("seed: 1\nseed: 2\n")
    (folder / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (folder / "list.yaml").write_text("[1]")
    (folder / "empty.yaml").write_text("seed: 1\n")
    made = MadeRun(folder / "runs" / "one")
    made.begin()
    for parent in "ab":
        Registry.of_user().add(MadeRun(folder / parent / "twin").run.root)
    return folder


@pytest.mark.parametrize(("advice", "wrong", "right"), COMMANDS)
def test_a_command_that_follows_its_advice_is_obeyed(
    place: Path, capsys: pytest.CaptureFixture[str], advice: str, wrong: str, right: str
) -> None:
    assert main(wrong.replace("RUN", "runs/one").split()) == ExitCode.CONFIGURATION
    pattern = re.escape(advice.partition(": ")[2]).replace(re.escape("{}"), ".*")
    assert re.search(pattern, capsys.readouterr().err)
    assert main(right.replace("RUN", "runs/one").split()) == ExitCode.DONE


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
FOLLOWERS: dict[str, list[Callable[[Path], None]]] = {}
Follower = Callable[[Path], None]


def follows(*keys: str) -> Callable[[Follower], Follower]:
    """The function gets each of these advices, follows it, and gets further."""

    def add(follower: Follower) -> Follower:
        for key in keys:
            FOLLOWERS.setdefault(key, []).append(follower)
        return follower

    return add


def refused(advice: str, work: Callable[[], object]) -> None:
    with pytest.raises(HpcrlError) as caught:
        work()
    assert_advised(caught.value, advice)


GOOD = '{"prompt": "1+1=", "answer": "2"}\n'


WRONG_ROWS = (
    "data/jsonl.py: Make each line of {} a JSON object with {}. An id of its own may be added; without any, rows are "
    "counted."
)
SAME_IDS = "data/jsonl.py: Give each line of {} an id of its own, or leave all ids out: rows are then counted."


def rows(text: str, folder: Path) -> Callable[[], JsonLines]:
    """Opens a file of these rows."""

    def work() -> JsonLines:
        (folder / "r.jsonl").write_text(text)
        return JsonLines(folder / "r.jsonl", "data.train", ANSWERED, ScratchIndexes())

    return work


@follows(
    "data/jsonl.py: Give {} one JSON object per line.",
    "data/jsonl.py: Make it readable, or submit a new run with another {}.",
    WRONG_ROWS,
    SAME_IDS,
)
def rows_are_corrected(folder: Path) -> None:
    refused("data/jsonl.py: Give {} one JSON object per line.", rows("\n", folder))
    records = rows(GOOD, folder)()
    (folder / "r.jsonl").unlink()
    refused("data/jsonl.py: Make it readable, or submit a new run with another {}.", lambda: records.read([0]))
    refused(WRONG_ROWS, rows("[1]\n", folder))
    refused(WRONG_ROWS, rows('{"prompt": "", "answer": "2"}\n', folder))
    twice = '{"id": 1, "prompt": "p", "answer": "a"}\n'
    refused(SAME_IDS, rows(twice * 2, folder))
    assert len(rows(twice + twice.replace("1", "2"), folder)().ids) == 2
    assert len(rows(GOOD * 2, folder)().ids) == 2


@follows("data/jsonl.py: Put back what {} was.", "data/contents.py: Let whatever writes it end, then try again.")
def a_file_stays_what_it_was(folder: Path) -> None:
    records, path = rows(GOOD, folder)(), folder / "r.jsonl"
    before = stamp_of(path)
    path.write_text(GOOD.replace("1+1", "1+2") + GOOD)
    refused("data/jsonl.py: Put back what {} was.", lambda: records.read([0]))
    advice = "data/contents.py: Let whatever writes it end, then try again."
    refused(advice, lambda: refuse_written(path, before))
    refuse_written(path, stamp_of(path))
    path.write_text(GOOD)
    assert records.read([0])[0]["prompt"] == "1+1="


@follows(
    "data/tokens.py: Put Hugging Face's tokenizer.json there, or {}.",
    "data/tokens.py: Correct it.",
    "data/tokens.py: Give tokenizer_config.json an eos_token of the vocabulary, or config.json an eos_token_id, or {}.",
)
def a_tokenizer_is_completed(folder: Path) -> None:
    refused(
        "data/tokens.py: Put Hugging Face's tokenizer.json there, or {}.",
        lambda: load_tokens(folder),
    )
    made = train_tokenizer(folder / "made", ["1 + 1"])
    settings = made / "tokenizer_config.json"
    right = settings.read_text()
    settings.write_text("{")
    refused("data/tokens.py: Correct it.", lambda: load_tokens(made))
    settings.write_text("{}")
    refused(next(key for key in advices() if key.startswith("data/tokens.py: Give")), lambda: load_tokens(made))
    (made / "config.json").write_text('{"eos_token_id": 7}')
    assert load_tokens(made).eos_ids == (7,)
    settings.write_text(right)
    assert len(load_tokens(made).eos_ids) == 2


@follows(
    "data/jsonl.py: Give {} such rows, or submit a new run with data.fields for its columns.",
    "data/jsonl.py: Submit a new run with data.fields for what {} is to be read as, e.g. data.fields.{}.",
    "data/rows/texts.py: Submit a new run with data.chat_template in the place of data.prompt_template.",
    "data/rows/turns.py: Submit a new run with a data.chat_template, or with a data.tokenizer that has one.",
    "data/chat.py: Change the row, or submit a new run with another data.chat_template, data.template_args or "
    "data.learn.",
    "data/chat.py: Put a text in UTF-8 there.",
    "data/chat.py: Correct it.",
)
def rows_are_read_as_they_are_meant(folder: Path) -> None:
    chat = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]
    template, tokenizer = folder / "chat.jinja", str(chat_tokenizer(folder / "tokenizer", None))

    def opened(row: object, **settings: Any) -> SequenceSample:
        (folder / "r.jsonl").write_text(json.dumps(row) + "\n")
        data = DataConfig(train=str(folder / "r.jsonl"), batch_size=1, **{"tokenizer": tokenizer} | settings)
        return open_datasets(SFTExperiment(data=data, actor=SFTModelConfig(path="m")))["train"].rows(["0@0"])

    advised = [key for key in FOLLOWERS if rows_are_read_as_they_are_meant in FOLLOWERS[key]]
    columns, named, texts, none, change, readable, correct = advised
    refused(columns, lambda: opened({"q": "1 + 1", "a": "2"}))
    opened({"q": "1 + 1", "a": "2"}, fields={"prompt": "q", "answer": "a"})
    both = {"prompt": "1 + 1", "answer": "2", "messages": chat}
    refused(named, lambda: opened(both))
    opened(both, fields={"prompt": "prompt"})
    refused(texts, lambda: opened({"messages": chat}, prompt_template="Q: {prompt}"))
    refused(none, lambda: opened({"messages": chat}))
    refused(readable, lambda: opened({"messages": chat}, chat_template=str(template)))
    template.write_text("{{ no_such_function() }}")
    with pytest.raises(HpcrlError, match=re.escape(change.partition(": ")[2])):
        opened({"messages": chat}, chat_template=str(template))
    template.write_text(MARKED)
    opened({"messages": chat}, chat_template=str(template))
    opened({"messages": chat}, tokenizer=str(chat_tokenizer(folder / "other", MARKED)))
    special = folder / "tokenizer" / "special_tokens_map.json"
    special.write_text("[")
    refused(correct, lambda: opened({"messages": chat}, chat_template=str(template)))
    special.write_text("{}")
    opened({"messages": chat}, chat_template=str(template))


@follows(
    "data/source_files.py: Put some there, or submit a new run with another {}.",
    "data/source_files.py: Correct it, or submit a new run with another {}.",
    "data/source_files.py: Fix the function or the row.",
    "data/source_files.py: Fix the function.",
    "data/source_files.py: Fix the file, or submit a new run with another {}.",
    "data/source_files.py: Save the data set again.",
    "data/source_files.py: Submit a new run with the folder or the file of one split as {}.",
)
def a_data_set_is_completed(folder: Path) -> None:
    files, own, rows_in = folder / "set", folder / "own.py", folder / "set" / "a.jsonl"
    files.mkdir()

    def opened(function: str = "") -> JsonLines:
        place = f"{own}:{function}"
        maker = row_maker("data.row", place, place) if function else None
        return JsonLines(files, "data.train", ANSWERED, ScratchIndexes(), maker=maker)

    refused("data/source_files.py: Put some there, or submit a new run with another {}.", opened)
    (files / "a.parquet").write_text("no table")
    refused("data/source_files.py: Correct it, or submit a new run with another {}.", opened)
    (files / "a.parquet").unlink()
    rows_in.write_text('{"q": "1+1=", "a": "2"}\n')
    own.write_text("def make(row): return {'prompt': row['p'], 'answer': row['a']}\ndef nothing(row): pass\n")
    refused("data/source_files.py: Fix the function or the row.", lambda: opened("make"))
    refused("data/source_files.py: Fix the function.", lambda: opened("nothing"))
    refused("data/source_files.py: Fix the file, or submit a new run with another {}.", lambda: opened("mke"))
    rows_in.write_text('{"p": "1+1=", "a": "2"}\n')
    assert opened("make").read([0])[0]["prompt"] == "1+1="
    (files / "state.json").write_text("{}")
    refused("data/source_files.py: Save the data set again.", lambda: opened("make"))
    (files / "state.json").write_text('{"_data_files": [{"filename": "a.jsonl"}]}')
    assert len(opened("make").index) == 1
    (files / "dataset_dict.json").write_text('{"splits": ["a", "b"]}')
    splits = "data/source_files.py: Submit a new run with the folder or the file of one split as {}."
    refused(splits, lambda: opened("make"))
    assert len(
        JsonLines(rows_in, "data.train", ANSWERED, ScratchIndexes(), fields={"prompt": "p", "answer": "a"}).index
    )


@follows(
    "data/rows/kind.py: Submit a new run with a lower {}.",
    "data/rows/texts.py: Submit a new run with shorter rows, or with a higher bound.",
)
def rows_are_enough(folder: Path) -> None:
    refused(
        "data/rows/kind.py: Submit a new run with a lower {}.", lambda: open_datasets(with_data(folder, batch_size=4))
    )
    refused(
        "data/rows/texts.py: Submit a new run with shorter rows, or with a higher bound.",
        lambda: open_datasets(with_data(folder, max_prompt_tokens=1))["train"].ids,
    )
    assert open_datasets(with_data(folder, batch_size=2, max_prompt_tokens=20))["train"].ids


def with_data(folder: Path, **changes: int) -> SFTExperiment:
    (folder / "r.jsonl").write_text(GOOD * 2)
    tokenizer = train_tokenizer(folder / "tokenizer", ["1 + 1"])
    data = DataConfig(train=str(folder / "r.jsonl"), tokenizer=str(tokenizer), **{"batch_size": 2} | changes)
    return SFTExperiment(data=data, actor=SFTModelConfig(path=str(folder / "model")))


@follows("data/inputs.py: Make it readable, or submit a new run with another {}.")
def an_input_is_there(folder: Path) -> None:
    experiment = with_data(folder)
    gone = dataclasses.replace(experiment.data, train=f"{folder}/gone.jsonl")
    advice = "data/inputs.py: Make it readable, or submit a new run with another {}."
    refused(advice, lambda: fingerprints(dataclasses.replace(experiment, data=gone)))
    assert "data.train" in fingerprints(experiment)


@follows("config/validate.py: Set data.tokenizer.", "families/reader.py: Name the family in {}.")
def a_model_is_described(folder: Path) -> None:
    tokenizer = folder / "model" / "tokenizer.json"
    tokenizer.rename(folder / "tokenizer.json")
    with pytest.raises(ConfigurationError) as caught:
        load(folder, [])
    assert_advised(caught.value, "config/validate.py: Set data.tokenizer.")
    load(folder, [f"data.tokenizer={folder}"])
    (folder / "small" / "config.json").write_text(json.dumps(QWEN2_TINY | {"model_type": "mine"}))
    refused("families/reader.py: Name the family in {}.", lambda: read_config(folder / "small", None, "actor.family"))
    assert read_config(folder / "small", "qwen2", "actor.family").blocks == 2


@follows(
    "families/headers.py: Save the model with safe_serialization=True, or change the model's path.",
    "families/headers.py: Copy it again; where it is a few lines of text, `git lfs pull` brings the file itself.",
    "families/headers.py: Copy the whole folder again.",
    "families/headers.py: Copy the whole folder.",
)
def a_model_is_copied_again(folder: Path) -> None:
    from support.tiny_models import tiny_model

    from hpcrl.models.pretrained import load_pretrained, save_pretrained

    model, one, parts = tiny_model(), folder / "one", folder / "parts"
    save_pretrained(one, model.config, model.views)
    save_pretrained(parts, model.config, model.views, max_file_bytes=3_000)

    def reading(path: Path) -> Callable[[], object]:
        return lambda: [tensor for _, tensor in load_pretrained(path)[1]]

    file, index = one / "model.safetensors", parts / "model.safetensors.index.json"
    whole, named = file.read_bytes(), index.read_text()
    file.rename(one / "pytorch_model.bin")
    refused(next(key for key in advices() if key.startswith("families/headers.py: Save")), reading(one))
    file.write_text("version https://git-lfs.github.com/spec/v1\n")
    refused(next(key for key in advices() if key.startswith("families/headers.py: Copy it")), reading(one))
    file.write_bytes(whole)
    reading(one)()
    index.write_text("{}")
    refused("families/headers.py: Copy the whole folder again.", reading(parts))
    index.write_text(named)
    part = next(parts.glob("model-*.safetensors"))
    bytes_ = part.read_bytes()
    part.unlink()
    refused("families/headers.py: Copy the whole folder.", reading(parts))
    part.write_bytes(bytes_)
    reading(parts)()


@follows(
    "durable/place.py: Choose another --run-dir.",
    "durable/place.py: Choose another --run-dir or run_root.",
    "durable/keys.py: chmod 600 it, or submit anew if others read it.",
)
def a_run_directory_is_ones_own(folder: Path) -> None:
    def create(name: str) -> RunDirectory:
        return RunDirectory.create(folder / name, experiment={}, host="x:Y", key=KeyPair("p", "s"), inputs={})

    refused("durable/place.py: Choose another --run-dir.", lambda: create("model"))
    refused("durable/place.py: Choose another --run-dir or run_root.", lambda: create("rows.jsonl/run"))
    run = create("run")
    run.key_json.chmod(0o644)
    refused("durable/keys.py: chmod 600 it, or submit anew if others read it.", lambda: read_key(run))
    run.key_json.chmod(0o600)
    assert read_key(run) == KeyPair("p", "s")


@follows("config/load.py: Submit a new run with {}.")
def a_new_run_has_another_seed(folder: Path) -> None:
    write_config(folder / "c.yaml", ppo_values())
    experiment = load_config(folder / "c.yaml")
    refused("config/load.py: Submit a new run with {}.", lambda: change_settings(experiment, ["seed=7"], ALL_CHECKS))
    assert load_config(folder / "c.yaml", ["seed=7"]).seed == 7


@follows(
    "placement/abilities.py: Set {} or {}.",
    "placement/abilities.py: Set {} to {}.",
    "placement/abilities.py: Set {} to {}{}.",
)
def a_backend_that_can(folder: Path) -> None:
    (folder / "poor.py").write_text(
        "from hpcrl.backends.native import BACKEND\nimport dataclasses\n"
        "POOR = dataclasses.replace(BACKEND, dtypes=('fp32',), train=False)\n"
        "MUTE = dataclasses.replace(BACKEND, generate=False)\n"
        "REMOTE = dataclasses.replace(BACKEND, devices=('cuda',))\n"
    )
    poor, mute, remote = ([f"actor.backend={folder}/poor.py:{name}"] for name in ("POOR", "MUTE", "REMOTE"))
    for advice, wrong in (
        ("Set {} or {}.", [*poor, "actor.dtype=bf16"]),
        ("Set {} to {}.", [*remote, "cluster.device=cpu"]),
        ("Set {} to {}{}.", poor),
        ("Set {} to {}{}.", mute),
    ):
        with pytest.raises(ConfigurationError) as caught:
            load(folder, wrong)
        assert_advised(caught.value, f"placement/abilities.py: {advice}")
        load(folder, [*wrong, "actor.backend=native"])
    load(folder, [*mute, "calls={actor_gen: {backend: native}}"])


@follows("recipes/check.py: Fix the file or set algorithm.")
def an_algorithm_is_fixed(folder: Path) -> None:
    text = "import dataclasses\nfrom hpcrl.recipes.toy import ALGORITHM as TOY\nMINE = {}\n"
    (folder / "mine.py").write_text(text.format("dataclasses.replace(TOY, metrics={'none': ('loss',)})"))
    (folder / "fixed.py").write_text(text.format("TOY"))
    (folder / "c.yaml").write_text("control: {steps: 2}\n")

    def take(name: str) -> None:
        load_config(folder / "c.yaml", [f"algorithm={folder}/{name}.py:MINE"], ALL_CHECKS)

    refused("recipes/check.py: Fix the file or set algorithm.", lambda: take("mine"))
    take("fixed")


@follows(
    "data/rows/texts.py: Change the row, or submit a new run with some text in data.prompt_template.",
    "data/rows/texts.py: Submit a new run with a data.tokenizer and models that belong together.",
    "data/rows/texts.py: Submit a new run with a data.tokenizer and an actor.path that belong together.",
)
def rows_and_models_have_the_same_tokens(folder: Path) -> None:
    experiment = with_data(folder)
    tokenizer = folder / "tokenizer"
    for name in ("model", "small"):
        shutil.copy(tokenizer / "tokenizer.json", folder / name)
    small = folder / "small"
    strange = dataclasses.replace(experiment, actor=SFTModelConfig(path=str(small)))
    (small / "config.json").write_text(json.dumps(QWEN2_TINY | {"vocab_size": 8}))
    settings = tokenizer / "tokenizer_config.json"
    early = settings.read_text()
    for end, models in ('{"eos_token": "2"}', "models"), (early, "an actor.path"):
        settings.write_text(end)
        advice = f"data/rows/texts.py: Submit a new run with a data.tokenizer and {models} that belong together."
        refused(advice, lambda: open_datasets(strange)["train"].rows(["0@0"]))
    (folder / "model" / "config.json").write_text(json.dumps(QWEN2_TINY | {"vocab_size": 400}))
    assert open_datasets(experiment)["train"].rows(["0@0"]).ids == ("0@0",)

    forgetful = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    forgetful.normalizer = Replace("1+1=", "")
    forgetful.save(str(tokenizer / "tokenizer.json"))
    advice = "data/rows/texts.py: Change the row, or submit a new run with some text in data.prompt_template."
    refused(advice, lambda: open_datasets(experiment)["train"].rows(["0@0"]))
    templated = dataclasses.replace(experiment.data, prompt_template="Q: {prompt}")
    assert open_datasets(dataclasses.replace(experiment, data=templated))["train"].rows(["0@0"]).ids == ("0@0",)


@follows("durable/rundir.py: Resume it with the hpcrl that made it, or submit anew.")
def a_run_of_another_format_is_submitted_anew(folder: Path) -> None:
    made = MadeRun(folder / "made").run
    old = json.loads(made.run_json.read_bytes()) | {"format": 1}
    made.run_json.write_text(json.dumps(old))
    advice = "durable/rundir.py: Resume it with the hpcrl that made it, or submit anew."
    refused(advice, lambda: RunDirectory.open(made.root))
    assert RunDirectory.open(MadeRun(folder / "anew").run.root).numbers() == []


@follows("durable/append_log.py: Resume the run.")
def a_log_that_failed_is_followed_by_another(folder: Path) -> None:
    points = iter([None, OSError(errno.ENOSPC, "full"), None])

    def fault(point: str) -> None:
        if point == "j.before" and (error := next(points)) is not None:
            raise error

    log = Files(folder, fault).open_log(folder / "log", "j")
    log.append([b"1\n"])
    with pytest.raises(DiskFullError):
        log.append([b"2\n"])
    refused("durable/append_log.py: Resume the run.", lambda: log.append([b"3\n"]))
    log.close()
    of_the_next_attempt = Files(folder, fault).open_log(folder / "again", "j")
    of_the_next_attempt.append([b"2\n"])
    of_the_next_attempt.close()


@follows(
    "data/user_code.py: Make it readable, or submit a new run with another {}.",
    "data/user_code.py: Fix the file, or submit a new run with another {}.",
    "data/user_code.py: Set code.files.",
    "data/user_code.py: Leave data out of {}, and have your code read it where it is.",
    "data/user_code.py: Rename the file.",
)
def code_is_where_its_settings_say(folder: Path) -> None:
    judge = folder / "judge.py"

    def find(function: Path = judge, *files: str) -> None:
        user_code.collect_code({"reward.function": f"{function}:score"}, files)

    judge.write_text("def score(")
    refused("data/user_code.py: Fix the file, or submit a new run with another {}.", find)
    judge.write_text("def score(prompt, response, row): return 1.0\n")
    refused(
        "data/user_code.py: Make it readable, or submit a new run with another {}.", lambda: find(folder / "gone.py")
    )
    refused("data/user_code.py: Set code.files.", lambda: find(judge, f"{folder}/none*.txt"))
    advice = "data/user_code.py: Leave data out of {}, and have your code read it where it is."
    (folder / "large.bin").write_bytes(bytes(100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_code, "MOST_BYTES", 90)
        refused(advice, lambda: find(judge, f"{folder}/large.bin"))
        find(judge)
    strange = folder / os.fsdecode(b"\xff.txt")
    strange.touch()
    refused("data/user_code.py: Rename the file.", lambda: find(judge, f"{folder}/*.txt"))
    strange.rename(folder / "plain.txt")
    find(judge, f"{folder}/*.txt")


@follows("durable/paths.py: Choose another --run-dir.", "config/yaml_file.py: Give another file.")
def a_path_and_a_file_that_can_be_used(folder: Path) -> None:
    refused("durable/paths.py: Choose another --run-dir.", lambda: refuse_unusable(folder / "a\nb"))
    refuse_unusable(folder / "ab")
    (folder / "large.yaml").write_text("#" * (yaml_file.MOST_BYTES + 1))
    refused("config/yaml_file.py: Give another file.", lambda: yaml_file.read_yaml(folder / "large.yaml"))
    write_config(folder / "c.yaml", ppo_values())
    assert yaml_file.read_yaml(folder / "c.yaml")["algorithm"] == "ppo"


@follows(
    "doctor/measure.py: Name a folder of yours that all nodes see.", "doctor/measure_nodes.py: Leave --in-job out."
)
def a_folder_and_a_place_to_measure(folder: Path) -> None:
    environ = {"PATH": ""}
    advice = "doctor/measure.py: Name a folder of yours that all nodes see."
    refused(advice, lambda: measure(MeasureRequest(folder / "gone"), environ))
    advice = "doctor/measure_nodes.py: Leave --in-job out."
    refused(advice, lambda: measure(MeasureRequest(folder, "in job"), environ))
    assert len(measure(MeasureRequest(folder), environ).nodes) == 1


@follows("launch/slurm/render.py: Put them in.", "launch/slurm/render.py: Write it in one line.")
def a_template_is_completed(folder: Path) -> None:
    own = folder / "array.sbatch"
    own.write_text("#!/bin/bash\nrun=@RUN@\n")
    cluster = ClusterConfig(nodes=2, template=str(own), slurm=SlurmConfig(python="/opt/bin/python"))
    target = Target(folder / "run", "run", "0123abcd")
    refused("launch/slurm/render.py: Put them in.", lambda: render(cluster, "array", target))
    own.write_text(read_template("array"))
    assert render(cluster, "array", target)
    odd, even = (
        dataclasses.replace(cluster, slurm=dataclasses.replace(cluster.slurm, comment=comment))
        for comment in ("a\nb", "a b")
    )
    refused("launch/slurm/render.py: Write it in one line.", lambda: render(odd, "array", target))
    assert render(even, "array", target)


@follows(
    "launch/slurm/launcher.py: Set cluster.topology to hetjob or colocated.",
    "launch/slurm/launcher.py: Set cluster.topology to array.",
)
def a_topology_that_the_site_allows(folder: Path) -> None:
    launcher = SlurmLauncher()

    def take(topology: str, **limits: object) -> None:
        site = {"disable_hetjob_steps": False, "max_array_size": 9} | limits
        launcher._site = cast(SlurmSite, SimpleNamespace(**site))
        launcher._refuse(5, topology)

    advice = "launch/slurm/launcher.py: Set cluster.topology to hetjob or colocated."
    refused(advice, lambda: take("array", max_array_size=4))
    take("hetjob", max_array_size=4)
    advice = "launch/slurm/launcher.py: Set cluster.topology to array."
    refused(advice, lambda: take("hetjob", disable_hetjob_steps=True))
    take("array", disable_hetjob_steps=True)


@follows(
    "rewards/by_source.py: Name its function in the kwargs of by_source, as sources: {NAME: exact}; a component's "
    "change in a fork of the run."
)
def a_source_has_a_function(folder: Path) -> None:
    row = {"id": "0", "data_source": "mine", "answer": "2"}
    (advice,) = (key for key in FOLLOWERS if key.startswith("rewards/by_source.py"))
    refused(advice, lambda: by_source.score("2", row))
    kwargs = {"sources": {"mine": "exact"}}
    short = write_config(folder / "c.yaml", ppo_values() | {"reward": {"function": "by_source"}})
    assert change_settings(load_config(short), [f"reward.kwargs={json.dumps(kwargs)}"], ALL_CHECKS).reward.kwargs
    component = {"function": "by_source"}
    several = write_config(folder / "c.yaml", ppo_values() | {"reward": {"components": {"a": component}}})
    changed = f"reward.components={json.dumps({'a': component | {'kwargs': kwargs}})}"
    refused(
        "config/load.py: Begin a new run from a checkpoint of this one: `hpcrl fork RUN --step N --{} {}`.",
        lambda: change_settings(load_config(several), [changed], ALL_CHECKS),
    )
    assert change_settings(load_config(several), [changed], ALL_CHECKS, OF_A_FORK).reward.parts["a"].kwargs
    assert by_source.score("2", row, **kwargs) == 1.0


@follows(
    "rewards/service.py: Export {} where you submit and resume; on Slurm, cluster.slurm.export must have it if it is "
    "set."
)
def a_service_gets_its_token(folder: Path) -> None:
    component = Component(service="http://judge:8000/score", token_variable="JUDGE_TOKEN")
    (advice,) = (key for key in FOLLOWERS if key.startswith("rewards/service.py"))

    def use() -> None:
        Service("reward.components.judge.service", component, RewardConfig()).close()

    refused(advice, use)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUDGE_TOKEN", "secret")
        use()


ALL_FOLLOWERS = dict.fromkeys(each for found in FOLLOWERS.values() for each in found)


@pytest.mark.parametrize("follower", ALL_FOLLOWERS, ids=lambda follower: follower.__name__)
def test_who_follows_advice_on_files_gets_further(folder: Path, follower: Follower) -> None:
    follower(folder)


# ── all of them ───────────────────────────────────────────────────────────────────────────────────────────────────────
GPUS = "agent/test_gpu_advice.py::test_a_run_gets_its_gpus_by_doing_what_it_is_told_until_nothing_is_left_to_tell"
ENVIRONMENTS = "algos/test_environment.py::test_what_cannot_be_is_refused_and_can_be_set"
REHEARSED_AGAIN = (
    "controller/test_rehearsal.py::test_a_loop_without_end_and_a_script_that_is_async_pass_once_they_do_as_advised"
)
DIVERGED = "algos/test_gets_further.py::test_a_replaced_model_is_put_back_and_a_diverged_one_left_for_an_earlier"
SEARCHED = "test_search_page.py::test_what_it_cannot_search_with_is_refused_and_the_advice_leads_on"
SIMULATED = "test_simulate_page.py::test_what_is_none_of_the_run_is_refused_and_the_advice_leads_on"
ELSEWHERE = {
    **dict.fromkeys(
        ("recipes/check.py: Leave {} out; in the script, batch.filter leaves samples out.",),
        "recipes/test_check.py::test_what_a_graph_decides_is_refused_where_a_script_does",
    ),
    "hidden_modules.py: Rename {}, or move it out of {}.": (
        "test_hidden_modules.py::test_a_file_beside_a_script_that_hides_a_module_is_refused_by_name"
    ),
    "controller/run.py: Make it a def.": REHEARSED_AGAIN,
    "controller/stand_in.py: If a loop waits for numbers that made-up rows do not have, bound it: "
    "for _ in range(10).": REHEARSED_AGAIN,
    "controller/declared.py: Ask for all turns by respond(actor, environment, batch, e), from "
    "hpcrl.controller.dialogue.": "algos/test_environment.py::test_a_script_asks_for_all_turns_by_respond",
    "controller/stand_in.py: Ask in the loop, and have the computation read what comes of it as rows.": (
        "controller/test_rehearsal.py::test_a_computation_that_asks_is_told"
    ),
    "controller/stand_in.py: Give it a seed as an argument: int(run.rng('NAME').integers(2**32)).": (
        "controller/test_rehearsal.py::test_a_computation_draws_from_a_generator_of_its_own"
    ),
    "recipes/updates.py: Ask for one, and raise {}.minibatches or {}.epochs, which are the loop over a step's updates; "
    "or set {}.old_logprobs to sampled.": (
        "controller/test_rehearsal.py::test_a_second_update_of_a_step_whose_ratio_is_1_is_refused"
    ),
    **{f"controller/{advice}": script_advice.FOLLOWED_BY for advice in script_advice.IN_A_LOOP},
    "controller/advantages.py: Give it e.generation as a further argument.": (
        "controller/test_advantages.py::test_a_penalty_of_long_responses_counts_from_the_longest"
    ),
    "placement/check_calls.py: Set {}.layout to {}, or leave out {}.": (
        "recipes/test_registered.py::test_what_is_registered_without_stages_is_not_placed_with_some"
    ),
    "workers/registered.py: Give the method another name.": (
        "workers/test_registered.py::test_a_method_that_an_attribute_hides_is_told_and_has_another_name"
    ),
    "workers/registered.py: Return texts, finite numbers, true, false, null, lists and dicts; rows go by a mode of "
    "samples.": "workers/test_registered.py::test_a_value_is_what_json_gives_back",
    **{f"controller/{advice}": script_advice.METHODS_FOLLOWED_BY for advice in script_advice.OF_METHODS},
    **{
        f"controller/{advice}": script_advice.FOLLOWED_AHEAD
        for advice in (*script_advice.IN_PREPARE, *script_advice.OF_A_LAG)
    },
    "controller/groups.py: Rename a key of the same type.": (
        "controller/test_rehearsal.py::test_a_renamed_key_of_another_type_is_refused"
    ),
    "controller/run.py: Write run.steps(prepare=…, lag=e.lag).": (
        "controller/test_ahead.py::test_the_lag_is_that_of_the_settings"
    ),
    "cli/simulate.py: Write 0 or more.": SIMULATED,
    "cli/simulate.py: Write 1 to {}.": SIMULATED,
    "placement/lengths.py: Lower data.batch_size, or --steps.": (
        "test_simulate_page.py::test_what_is_none_of_the_run_is_refused_and_the_advice_leads_on"
    ),
    "cli/simulate.py: Write a duration above 0, such as 24h.": SIMULATED,
    "cli/search.py: Give one number, as in --nodes {}.": (
        "test_profile.py::test_after_a_run_a_search_counts_what_it_measured_and_says_whether_resuming_pays"
    ),
    "simulation/disturbances.py: Name others, or raise --steps.": SIMULATED,
    "simulation/disturbances.py: Name others.": SIMULATED,
    "simulation/disturbances.py: Nodes and workers are counted from 0.": SIMULATED,
    "simulation/disturbances.py: Write a number above 0, as in 3=2.": SIMULATED,
    "simulation/disturbances.py: Write a number of 0 or more with its unit: 40s, 2.5m, 24h or 3d.": SIMULATED,
    "simulation/disturbances.py: Write {} {}.": SIMULATED,
    "simulation/simulate.py: Give a longer --wall-time, a shorter --replaced, or fewer disturbances.": SIMULATED,
    "inspect/archives.py: Look at other steps with --step.": (
        "inspect/test_damaged_runs.py::test_where_an_archive_is_damaged_other_steps_are_shown"
    ),
    "cli/log_filter.py: Give --around a time.": (
        "cli/test_run_commands.py::test_logs_are_filtered_by_step_call_role_and_attempt"
    ),
    "inspect/mirrors/mirror.py: Wait for it, or end it.": (
        "inspect/test_mirrors.py::test_two_mirrors_of_one_folder_and_unknown_programs_are_refused"
    ),
    "recipes/check.py: Run: pip install 'hpcrl[{}]'; or leave control.mirror out.": (
        "inspect/test_mirrors.py::test_a_program_that_is_not_installed_is_refused_before_anything_starts"
    ),
    "cli/samples.py: Correct it, or escape it with a backslash.": (
        "inspect/test_samples.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "inspect/conditions.py: Compare names with numbers or texts, as in 'reward < 0 and ended == \"length\"'.": (
        "inspect/test_samples.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "inspect/conditions.py: Compare it as in: {}": (
        "inspect/test_samples.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "cli/samples.py: Give 1 or more, or leave it out.": (
        "inspect/test_samples.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "cli/samples.py: Add a name, as in --sort reward.": (
        "inspect/test_samples.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "inspect/steps_asked.py: Give {}, a span of them, or all.": (
        "inspect/test_samples.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "inspect/steps_asked.py: There are {}.": ("inspect/test_samples.py::test_who_does_what_is_advised_is_not_refused"),
    "inspect/nothing_kept.py: Wait for the first {} to end.": (
        "inspect/test_samples.py::test_a_run_that_has_kept_nothing_says_so_until_a_step_has"
    ),
    **dict.fromkeys(
        (
            "inspect/nothing_kept.py: Their metrics say what they computed: hpcrl inspect {} steps",
            "inspect/nothing_kept.py: Have later steps keep some: hpcrl resume {} {}",
            "inspect/nothing_kept.py: Submit a new run with {}.",
        ),
        "inspect/test_samples.py::test_a_run_that_has_kept_nothing_says_why",
    ),
    "cli/inspect.py: Name it: hpcrl inspect RUN diff OTHER.": (
        "inspect/test_diff.py::test_the_command_needs_a_second_run_and_prints_json"
    ),
    "cli/inspect.py: Name it: --html FILE.": (
        "inspect/test_report.py::test_the_command_needs_a_file_for_the_page_and_prints_json"
    ),
    "cli/inspect.py: Give --plot too.": "cli/test_run_commands.py::test_inspect_draws_its_curves_where_it_is_told",
    "cli/inspect.py: Leave it out, or take {}.": (
        "inspect/test_timeline.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "inspect/timeline_page.py: Ask for fewer --steps, or --perfetto.": (
        "inspect/test_timeline.py::test_a_page_of_too_many_bars_is_refused_with_what_to_do"
    ),
    "inspect/views/timeline.py: Wait for the first; hpcrl status says how far it is.": (
        "inspect/test_timeline.py::test_a_run_of_which_no_step_has_closed_says_so"
    ),
    "inspect/views/samples.py: There are: {}.": (
        "inspect/test_samples.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "models/cuda_graphs.py: Set generation.cuda_graphs: off.": (
        "models/test_pace.py::test_without_graphs_a_device_that_cannot_record_them_generates"
    ),
    "cli/inspect.py: There are: {}.": "inspect/test_views.py::test_a_view_that_there_is_not_names_those_that_there_are",
    "cli/inspect.py: Write --json, or take {}.": ("inspect/test_views.py::test_each_view_is_json_of_its_type_and_text"),
    "placement/abilities.py: {}; or set {}.": (
        "placement/test_packages.py::test_a_package_that_is_missing_or_untested_is_told_with_the_command_that_brings_it"
    ),
    "parallel/deepspeed.py: This version is not tested with this release of hpcrl: install one that is.": (
        "engines/test_deepspeed.py::test_a_version_that_lays_parameters_out_otherwise_is_refused"
    ),
    "parallel/megatron.py: This version is not tested with this release of hpcrl: install one that is.": (
        "engines/test_megatron.py::test_a_version_that_lays_parameters_out_otherwise_is_refused"
    ),
    "placement/check_calls.py: Set {}.backend to {}, or leave out {}.python.": (
        "placement/test_check_servers.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "recipes/in_flight.py: Set {} to null.": (
        "recipes/test_in_flight.py::test_turns_of_an_environment_are_drawn_whole"
    ),
    "placement/check_servers.py: Leave out {}.backend.": (
        "placement/test_check_servers.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "placement/check_servers.py: Leave out {}.python.": (
        "placement/test_check_servers.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "placement/check_servers.py: Set {} to an interpreter that has {} (docs/backends.md).": (
        "placement/test_check_servers.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "placement/check_servers.py: Set {} to {} or more.": (
        "placement/test_check_servers.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "placement/check_servers.py: Set {}.": (
        "placement/test_check_servers.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "placement/check_servers.py: Set {}.layout to one with t at most cluster.workers_per_node, or {}.mesh.": (
        "placement/test_check_servers.py::test_who_does_what_is_advised_is_not_refused"
    ),
    "placement/check_adapters.py: Leave out {}, or set {} to another model.": (
        "placement/test_check_adapters.py::test_what_cannot_have_adapters_is_refused_and_another_model_serves"
    ),
    "placement/foreign_models.py: Set {} to another model.": (
        "placement/test_foreign_models.py::test_a_critic_of_a_model_without_such_a_class_is_refused"
    ),
    "placement/foreign_models.py: Set {} to auto, or {} to another model.": (
        "placement/test_foreign_models.py::test_code_that_was_chosen_and_does_not_have_the_model_is_refused_by_its_name"
    ),
    "placement/check.py: Set {} to auto, or {} to another model.": (
        "placement/test_foreign_models.py::test_code_that_was_chosen_and_does_not_have_the_model_is_refused_by_its_name"
    ),
    "placement/spaces.py: Leave {} as it was, or submit a new run.": (
        "launch/test_next_settings.py::test_a_head_that_the_other_code_has_not_keeps_the_code_that_it_has"
    ),
    "placement/foreign_models.py: Set {} to {}{}.": (
        "placement/test_foreign_models.py::test_layouts_and_backends_that_cut_it_are_refused"
    ),
    "launch/began_from.py: Put it back.": (
        "algos/test_adapter_runs.py::test_adapters_are_merged_into_no_weights_but_those_that_they_were_trained_with"
    ),
    "launch/export.py: Name a folder that is not.": (
        "launch/test_export.py::test_the_newest_checkpoint_is_what_the_run_exports_at_its_end"
    ),
    "launch/export.py: Name one with --role.": (
        "launch/test_export.py::test_the_newest_checkpoint_is_what_the_run_exports_at_its_end"
    ),
    "launch/exportable.py: Those that are: {}.": (
        "launch/test_export.py::test_the_newest_checkpoint_is_what_the_run_exports_at_its_end"
    ),
    "launch/export.py: Name a folder elsewhere with --out.": (
        "launch/test_export.py::test_a_checkpoint_that_is_pruned_while_it_is_read_is_exported_all_the_same"
    ),
    "launch/export.py: Name another step with --step; `hpcrl export {} --list` says which there are.": (
        "launch/test_export.py::test_a_shard_that_is_not_what_was_saved_is_refused"
    ),
    "cli/asking.py: Continue a text: `hpcrl generate {} …`.": (
        "cli/test_asking.py::test_it_prints_what_the_engine_says"
    ),
    "cli/asking.py: Give a prompt that is not empty, and shorter.": (
        "cli/test_asking.py::test_it_prints_what_the_engine_says"
    ),
    "placement/settling.py: Add nodes, or take smaller micro_batch_tokens or generation.slots, offload or bf16.": (
        SEARCHED
    ),
    "placement/search_inputs.py: Set search.device, such as H100, search.profile, or cluster.slurm.gpu_type; or "
    "cluster.device to cpu.": SEARCHED,
    "placement/search_inputs.py: Give a profile of the devices that the run will have, or set cluster.device.": (
        SEARCHED
    ),
    "placement/search_inputs.py: Give the JSON file that `hpcrl profile` writes: of a CONFIG, or --from RUN.": SEARCHED,
    "placement/search_inputs.py: Leave search.device out, or set cluster.device.": SEARCHED,
    "placement/search_inputs.py: Name a run's directory, or a file.": SEARCHED,
    "placement/search_inputs.py: Set one of them to null.": (
        "placement/test_search_inputs.py::test_lengths_that_are_said_twice_or_make_no_sense_are_refused"
    ),
    "placement/search_inputs.py: Set search.device to one of these, or search.profile.": SEARCHED,
    "placement/search_inputs.py: Set search.profile to what `hpcrl profile` measures on such parts.": (
        "placement/test_search_inputs.py::test_a_part_of_a_gpu_needs_a_profile"
    ),
    "placement/search_inputs.py: Set {}.dtype, or search.device or search.profile to another.": SEARCHED,
    "placement/settling.py: Set allocation to heuristic.": (
        "test_search_page.py::test_a_graph_that_is_too_large_is_refused_and_the_heuristic_takes_it"
    ),
    "launch/profile_from.py: Make one of each, or leave one out.": (
        "launch/test_profile_from.py::test_runs_of_one_kind_make_a_profile_together_and_others_are_refused"
    ),
    **dict.fromkeys(
        (
            "launch/profile_from.py: Name runs that trained or generated.",
            "launch/profile_from.py: Name runs that had one kind.",
            "launch/profile_from.py: Give a profile of the device that the runs had, or leave --profile out.",
        ),
        "launch/test_profile_from.py::test_what_tells_nothing_is_refused_and_the_advice_leads_on",
    ),
    **dict.fromkeys(
        (
            "cli/profile.py: Leave it out, or add --from RUN.",
            "cli/profile.py: Give it --out and --profile alone.",
            "cli/profile.py: See hpcrl profile --help. With --from RUN it measures nothing, and needs none.",
        ),
        "test_profile.py::test_after_a_run_a_search_counts_what_it_measured_and_says_whether_resuming_pays",
    ),
    "launch/profiling.py: `hpcrl resume {}` measures the others.": (
        "test_profile.py::test_a_profile_that_was_stopped_measures_what_is_missing_and_a_search_takes_it"
    ),
    "placement/search_inputs.py: Make one with `hpcrl profile` of this configuration, or leave search.profile out.": (
        "test_profile.py::test_a_profile_that_was_stopped_measures_what_is_missing_and_a_search_takes_it"
    ),
    "cli/eval.py: Name each once.": "algos/test_eval_command.py::test_models_are_compared_prompt_by_prompt",
    "launch/evaluated.py: Name another folder with --out.": (
        "algos/test_eval_command.py::test_a_folder_that_holds_an_evaluation_of_something_else_is_refused"
    ),
    "launch/evaluated.py: Name another folder with --out, or the step that was evaluated: RUN@STEP.": (
        "algos/test_eval_command.py::test_a_folder_that_holds_an_evaluation_of_something_else_is_refused"
    ),
    "launch/evaluations.py: Give it.": "algos/test_eval_command.py::test_models_are_compared_prompt_by_prompt",
    "cli/generate.py: Give one of them.": (
        "cli/test_asking.py::test_the_prompt_may_come_from_a_file_or_through_a_pipe"
    ),
    "engines/answering.py: Give --device cpu.": "cli/test_asking.py::test_what_cannot_be_asked_is_refused",
    "launch/answering.py: Give --dtype bf16 or fewer --max-new-tokens, or use a machine with more memory.": (
        "cli/test_asking.py::test_a_model_that_does_not_fit_is_refused_before_it_is_loaded"
    ),
    "launch/named_models.py: The nearest is {}.": "cli/test_asking.py::test_a_mistyped_folder_is_met_with_the_nearest",
    "launch/named_models.py: Download it: `{}`.": (
        "cli/test_asking.py::test_a_model_of_the_hubs_cache_is_found_by_its_name"
    ),
    "launch/named_models.py: Name a folder in Hugging Face format, ORG/NAME of the hub, a run, or RUN@STEP.": (
        "algos/test_offline_exports.py::test_a_runs_step_answers_as_its_export_does"
    ),
    "launch/named_models.py: Those that do: {}.": (
        "algos/test_offline_exports.py::test_a_runs_step_answers_as_its_export_does"
    ),
    "cli/export.py: Give --list too.": (
        "algos/test_offline_exports.py::test_the_list_says_what_can_be_had_and_why_not_the_rest"
    ),
    "launch/export.py: Try again: the run has newer checkpoints now.": (
        "launch/test_export.py::test_a_checkpoint_that_goes_meanwhile_is_told_and_the_next_try_serves"
    ),
    "placement/check_cuts.py: Set {} to one with {}.": (
        "placement/test_check_cuts.py::test_the_mlps_neurons_and_the_heads_are_named_with_their_numbers"
    ),
    "placement/check_cuts.py: Set {} to one with at most p{}.": (
        "placement/test_check_cuts.py::test_every_stage_has_a_block"
    ),
    "placement/check_calls.py: Set {}.between.": (
        "placement/test_check_calls.py::test_one_copy_is_treated_one_way_between_its_calls"
    ),
    "recipes/algorithm.py: Fix the file or set algorithm.": (
        "recipes/test_own_settings.py::test_a_setting_that_no_run_could_keep_is_refused_by_name_and_type"
    ),
    "launch/slurm/launcher.py: Lower cluster.slurm.cpus_per_worker or {}.": (
        "launch/slurm/test_node_memory.py::test_cpu_workers_that_fit_no_node_of_the_partition_are_refused_by_name"
    ),
    "config/load.py: Begin a new run from a checkpoint of this one: `hpcrl fork RUN --step N --{} {}`.": (
        "launch/test_user_code.py::test_a_reward_that_a_run_cannot_have_is_one_for_a_fork_of_it"
    ),
    "agent/claims.py: End that run with `hpcrl stop`, or give each job its own GPUs (CUDA_VISIBLE_DEVICES; on Slurm, "
    "cluster.slurm.gpus).": GPUS,
    "agent/claims.py: Remove it, or set cluster.device to cpu.": (
        "agent/test_claims.py::test_a_folder_that_somebody_else_prepared_is_not_used"
    ),
    "agent/devices.py: Lower cluster.workers_per_node, ask for more GPUs (cluster.slurm.gpus), or set cluster.device "
    "to cpu.": GPUS,
    "agent/gpus.py: Add its folder to LD_LIBRARY_PATH (to a container: --nv), or set cluster.device to cpu.": GPUS,
    "agent/torch_build.py: {} Or have the driver updated.": (
        "agent/test_torch_build.py::test_what_is_advised_instead_of_another_torch_serves_as_well"
    ),
    "agent/torch_build.py: {} Or set cluster.device to cpu.": (
        "agent/test_torch_build.py::test_what_is_advised_instead_of_another_torch_serves_as_well"
    ),
    "algos/host.py: Set cluster.gpu_isolation to strict.": (
        "agent/test_gpus.py::test_strict_isolation_serves_where_cuda_numbers_devices_in_another_order_than_the_agent"
    ),
    "launch/fork.py: Set what you change so that these stay, or submit a new run.": (
        "launch/test_fork.py::test_roles_that_change_are_those_of_the_checkpoint"
    ),
    "master/drop_limits.py: Fix the function and begin a new run, or accept the loss and resume: raise {}.": (
        "launch/test_dropped.py::test_a_run_that_drops_too_much_ends_and_goes_on_without_asking_again_once_it_may"
    ),
    "master/stepping.py: Raise {}.max_rounds{}, or submit a new run with rows that are neither too hard nor too "
    "easy.": (
        "master/test_choice.py::"
        "test_a_shortage_ends_the_run_with_the_scores_and_it_goes_on_when_it_may_draw_more_or_train_on_fewer"
    ),
    "durable/fork.py: Name a later step.": (
        "launch/test_fork.py::test_a_checkpoint_that_is_pruned_meanwhile_is_refused_and_a_later_one_serves"
    ),
    "durable/fork.py: Try again.": "launch/test_fork.py::test_a_copy_that_differs_is_refused_and_the_next_try_serves",
    "durable/recovery.py: Stop it with `hpcrl stop`, then resume.": (
        "durable/test_recovery.py::test_run_that_never_stands_still_is_not_taken_over"
    ),
    "engines/model.py: If it is trained, begin from a checkpoint before that with a lower {}.optimizer.lr: `hpcrl fork "
    "RUN --step N --{}.optimizer.lr …`. If not, submit a new run with another {}.path.": DIVERGED,
    "engines/masters.py: Put the model back that {}.path had when the run began, and accept it: `hpcrl resume RUN "
    "--accept-changed {}.path`.": DIVERGED,
    "engines/updater.py: Raise {}.max_skipped; or, where the model has diverged, begin from a checkpoint before that: "
    "`hpcrl fork RUN --step N`, with a lower {}.lr or {}.grad_clip.": (
        "algos/test_skipped.py::test_a_run_that_skips_too_often_ends_naming_the_limit_and_gets_further_with_a_higher_one"
    ),
    "errors.py: Install it: pip install 'hpcrl[{}]'": (
        "inspect/test_plots.py::test_without_matplotlib_the_extra_is_named_and_with_it_there_are_curves"
    ),
    "launch/next_code.py: Accept all of them: --accept-changed {}": (
        "launch/test_next_code.py::test_a_file_of_several_settings_is_taken_anew_with_all_of_them"
    ),
    "config/environment.py: Set {}.": ENVIRONMENTS,
    "config/environment.py: Set {}.function.": ENVIRONMENTS,
    "recipes/environment.py: Set generation.evaluation.samples_per_prompt.": ENVIRONMENTS,
    "recipes/environment.py: Set generation.segment.": ENVIRONMENTS,
    "launch/next_code.py: Have it change the same roles, or submit a new run.": (
        "launch/test_changed_script.py::test_a_script_is_changed_in_the_middle_of_a_run"
    ),
    "launch/orders.py: `hpcrl status {}` says how.": (
        "launch/test_orders.py::test_an_answer_that_came_before_the_end_counts"
    ),
    "launch/orders.py: `hpcrl status {}` shows what it does.": (
        "launch/test_orders.py::test_a_command_without_an_answer_is_not_waited_for_for_ever"
    ),
    "launch/stop.py: `hpcrl status {}` shows what they do.": (
        "launch/test_stop.py::test_what_does_not_end_is_told_and_status_shows_it"
    ),
    "cli/new.py: Give another file.": ("cli/test_new.py::test_what_is_written_after_its_advice_is_followed"),
    "cli/new.py: Give a file .jsonl or .parquet, or a folder of them.": (
        "cli/test_new.py::test_what_is_written_after_its_advice_is_followed"
    ),
    "cli/new.py: Give it, or see hpcrl new --help.": (
        "cli/test_new.py::test_what_is_written_after_its_advice_is_followed"
    ),
    "recipes/check.py: Leave control.evaluate out.": (
        "recipes/test_check.py::test_evaluations_that_nothing_can_make_are_refused"
    ),
    "durable/append_log.py: Free some space, or lower control.keep_checkpoints if it is above 2, and resume the run.": (
        "master/test_disturbances.py::test_a_full_disk_ends_the_run_naming_file_and_bytes_and_nothing_is_lost"
    ),
    "launch/preflight.py: Fix the function, or set {}.kwargs.": (
        "launch/test_preflight.py::test_an_environment_that_cannot_be_called_is_refused_by_its_own_name"
    ),
    "launch/preflight.py: Fix the function. If it reads files beside its own, name them in code.files. If it needs "
    "something that only the compute nodes have, set {}.trial_rows to 0: it is then not tried.": (
        "launch/test_preflight.py::test_a_reward_function_that_needs_the_nodes_is_not_tried"
    ),
    "placement/disk.py: Free some space there, or set run_root (or --run-dir) to a folder on a larger disk.": (
        "launch/test_preflight.py::test_a_disk_without_room_for_one_checkpoint_is_refused_with_figures_and_setting"
    ),
    "algos/judge.py: The row has {}. Set judge.question, or give the rows what it names.": (
        "algos/test_judge.py::test_a_field_that_a_row_lacks_is_named_with_those_that_it_has"
    ),
    "data/jsonl.py: Correct the line, and accept the change: hpcrl resume RUN --accept-changed {}": (
        "data/test_jsonl.py::test_a_line_that_an_older_index_let_pass_is_named"
    ),
    "data/inputs.py: Put it back, or accept it: hpcrl resume {} --accept-changed {}": (
        "launch/test_next_inputs.py::test_another_reference_model_ends_the_next_attempt_and_resume_until_it_is_accepted"
    ),
    "launch/next_inputs.py: It reads {}.": (
        "launch/test_next_inputs.py::test_another_reference_model_ends_the_next_attempt_and_resume_until_it_is_accepted"
    ),
    "launch/next_settings.py: To extend it, raise {}, or change control.stop_when if that has ended it.": (
        "launch/test_next_settings.py::test_a_done_run_is_extended_by_its_length_and_by_nothing_else"
    ),
    "launch/next_settings.py: Make it rare with control.evaluate.steps, or submit a new run.": (
        "launch/test_next_settings.py::test_evaluation_becomes_rare_but_is_not_switched_off"
    ),
    "launch/next_settings.py: Set what you change so that the rows stay, or submit a new run.": (
        "launch/test_next_settings.py::test_numbers_that_would_leave_out_rows_are_refused"
    ),
    "launch/next_settings.py: Set what you change so that the calls stay, or submit a new run.": (
        "launch/test_next_settings.py::test_numbers_that_would_make_other_calls_are_refused"
    ),
    "master/drift_check.py: With `hpcrl resume RUN --deterministic false` the run may continue with other numbers.": (
        "master/test_elastic.py::test_a_replay_over_as_many_workers_must_give_the_recorded_bits"
    ),
    "models/kernels.py: `hpcrl resume RUN --deterministic false` continues with whatever kernels there are.": (
        "models/test_kernels.py::test_an_operation_that_a_later_gradient_of_ranks_together_meets_ends_the_call"
    ),
    "durable/cuts.py: Name a step that has one; control.keep_checkpoints says how many are kept.": (
        "launch/test_fork.py::test_a_step_without_a_checkpoint_is_refused_with_those_that_have_one"
    ),
    "durable/cuts.py: Name another step.": (
        "launch/test_fork.py::test_a_damaged_checkpoint_is_named_and_another_step_serves"
    ),
    "agent/zygote.py: Put this node's environment right, then resume.": (
        "agent/test_notices.py::test_who_cannot_tell_the_master_is_heard_all_the_same"
    ),
    "durable/journals.py: Make it readable, then resume. Without it, what it recorded is made again.": (
        "master/test_damaged_documents.py::test_a_process_that_meets_a_damaged_file_says_so_and_its_advice_helps"
    ),
    "launch/slurm/launcher.py: Try again later, or with --cluster slurm to hear more; --cluster local runs on this "
    "machine.": "launch/test_launchers.py::test_auto_is_slurm_where_one_answers_and_this_machine_elsewhere",
    "launch/submit.py: `hpcrl stop {}` ends it, `hpcrl status {}` shows it.": (
        "launch/test_submit.py::test_a_running_run_is_not_resumed_a_second_time"
    ),
    "launch/submit.py: To resume it with other settings, end it first: hpcrl stop {}": (
        "slurm/test_commands.py::test_a_run_that_waits_in_the_queue_is_resumed_once_it_is_stopped"
    ),
    "durable/files.py: Resume the run: what was in it is computed again.": (
        "durable/test_recovery.py::test_damaged_part_is_named_and_computed_again"
    ),
}
"""Advice, and the test that follows it in real processes."""


def test_every_advice_is_followed_by_a_test() -> None:
    followed = {key for key, _, _ in (*CONFIGURATIONS, *COMMANDS)} | FOLLOWERS.keys() | ELSEWHERE.keys()
    assert sorted(advices() - followed) == [], "nobody follows them"
    assert sorted(followed - advices()) == [], "nobody gives them"
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), place
