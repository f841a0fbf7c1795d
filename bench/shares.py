"""What moves, releases and rows take of a step of examples/layouts, on eight workers of this machine: by rows of costs.

Of moves and rows these are upper bounds. A move counts from when the last of its workers was free. Rows are charged
with all of the time in which a worker was idle though a call had been sent to it: messages, rows, and the core that
the worker was waiting for, where there are fewer of them than workers.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from demo_runs import ROOT, environment, hpcrl
from figures import Figure
from sides.shapes import PROMPT_TOKENS, RESPONSE_TOKENS, VOCABULARY
from spans import Span, length, united
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from hpcrl.costs import Made
from hpcrl.costs import Span as PartSpan
from hpcrl.durable.rundir import RunDirectory
from hpcrl.families.config import DecoderConfig
from hpcrl.inspect.reader import RunReader
from hpcrl.models.pretrained import write_random_pretrained

MODEL = DecoderConfig(
    family="qwen2", vocabulary_size=VOCABULARY, hidden_size=256, intermediate_size=640, blocks=6, heads=8, kv_heads=2,
    head_dim=32, max_positions=1024, qkv_bias=True, tied=True,
)  # fmt: skip
BATCH, STEPS, WORKERS = 32, 5, 8
SETTINGS = {
    "cluster.device": "cpu",
    "cluster.lost_after_s": 120,
    "data.batch_size": BATCH,
    "data.prompt_template": "{prompt}",
    "actor.dtype": "fp32",
    "critic.dtype": "fp32",
    "reference.dtype": "fp32",
    "reward_model.dtype": "fp32",
    "generation.max_new_tokens": RESPONSE_TOKENS,
    "control.epochs": "null",
    "control.steps": STEPS,
    "control.checkpoint.seconds": "null",
}


def shares(work: Path) -> list[Figure]:
    attempt = RunReader(_ended(work)).attempts[0]
    rows, made = attempt.costs(), list(attempt.made())
    steps = (rows[0].at_s, rows[-1].at_s)  # the first one's moves find groups that have never met
    calls = {rank: [it.span for it in made if rank in it.ranks and "@" not in it.call] for rank in range(WORKERS)}
    moved = united(within(moves(made, calls), steps))
    figures = (cost.figures for row in rows[1:] for cost in row.calls.values())
    released = sum(it.seconds.release for it in figures if it is not None) / WORKERS
    waited = sum(length(within(_waiting(of_rank, moved), steps)) for of_rank in calls.values())
    whole, count = steps[1] - steps[0], len(rows) - 1
    spilled = sum(cost.bytes for row in rows for cost in row.calls.values()) / len(rows)
    return [
        Figure(
            "moves and releases of a step of examples/layouts",
            100 * (length(moves) + released) / whole,
            "%",
            "≤ 5",
            f"{count} steps of {whole / count:.1f} s; moves {length(moves) / count * 1e3:.0f} ms, to let go "
            f"{released / count * 1e3:.1f} ms a worker",
        ),
        Figure(
            "workers' time idle with a call underway to them, of all step time",
            100 * waited / (whole * WORKERS),
            "%",
            "≤ 1",
            f"{waited / WORKERS / count * 1e3:.0f} ms a worker and step, for {spilled / 1e3:.0f} kB of rows",
        ),
    ]


def _ended(work: Path) -> RunDirectory:
    """A run of the example with random models of 5M parameters."""
    shutil.rmtree(work, ignore_errors=True)
    write_inputs(work)
    values = SETTINGS | {"data.train": work / "rows.jsonl", "reward_model.path": work / "judge"}
    values |= {f"{role}.path": work / "model" for role in ("actor", "critic")}
    command = hpcrl("submit", "examples/layouts/ppo.yaml", "--run-dir", str(work / "run"))
    command += [f"--{key}={value}" for key, value in values.items()]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, stdout=subprocess.DEVNULL)
    return RunDirectory.open(work / "run")


def write_inputs(work: Path) -> None:
    """A language model, a judge of its texts, and prompts; their tokens are words."""
    work.mkdir(parents=True)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY - 1)} | {"<eos>": VOCABULARY - 1}, "w0"))
    words.pre_tokenizer = WhitespaceSplit()
    words.add_special_tokens(["<eos>"])
    for name, head in (("model", "vocabulary"), ("judge", "reward")):
        write_random_pretrained(work / name, MODEL.with_head(head), seed=1)
        words.save(str(work / name / "tokenizer.json"))
        (work / name / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    texts = (" ".join(f"w{(97 * row + 31 * i) % (VOCABULARY - 1)}" for i in range(PROMPT_TOKENS)) for row in range(256))
    rows = (json.dumps({"prompt": text, "answer": ""}) + "\n" for text in texts)
    (work / "rows.jsonl").write_text("".join(rows))


def busy(span: PartSpan) -> Span:
    return max(span.sent_s, span.ended_s - span.seconds), span.ended_s


def moves(made: Sequence[Made], calls: Mapping[int, Sequence[PartSpan]]) -> Iterator[Span]:
    for it in made:
        if "@" in it.call:
            ends = [span.ended_s for rank in it.ranks for span in calls[rank] if span.ended_s <= it.span.ended_s]
            yield max([it.span.ended_s - it.span.seconds, *ends]), it.span.ended_s


def _waiting(calls: Sequence[PartSpan], moves: Sequence[Span]) -> list[Span]:
    """When a worker had been sent a call and was at nothing."""
    asked = united((span.sent_s, busy(span)[0]) for span in calls)
    return _without(asked, united([*map(busy, calls), *moves]))


def _without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Those of `spans` in which none of the others is; both are apart and in order."""
    found = []
    for begin, end in spans:
        for other_begin, other_end in others:
            if other_end <= begin or other_begin >= end:
                continue
            if begin < other_begin:
                found.append((begin, other_begin))
            begin = max(begin, other_end)
        if begin < end:
            found.append((begin, end))
    return found


def within(spans: Sequence[Span] | Iterator[Span], whole: Span) -> list[Span]:
    cut = ((max(begin, whole[0]), min(end, whole[1])) for begin, end in spans)
    return [(begin, end) for begin, end in cut if begin < end]
