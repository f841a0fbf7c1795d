"""What moves, releases and rows take of a step of examples/layouts, on eight workers of this machine: by its events.

Of moves and rows these are upper bounds. A move counts from when the last of its workers was free. Rows are charged
with all of the time in which a worker was idle though a call had been sent to it: messages, rows, and the core that
the worker was waiting for, where there are fewer of them than workers.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from demo_runs import ROOT, environment, events_of, hpcrl
from figures import Figure
from sides.shapes import PROMPT_TOKENS, RESPONSE_TOKENS, VOCABULARY
from spans import Span, length, united
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from hpcrl.durable.rundir import RunDirectory
from hpcrl.families.config import DecoderConfig
from hpcrl.inspect.lines import Row, Tail
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
    run = _ended(work)
    events = list(events_of(run))
    closed = [row["time"] for row in events if row["event"] == "closed"]
    steps = (closed[0], closed[-1])  # the first one's moves find groups that have never met
    logs = {number: list(Tail(path).rows()) for number, path in _logs(run)}
    calls = {rank: [_of_log(row, rows) for row in rows if row["event"] == "execute"] for rank, rows in logs.items()}
    moves = united(_within(_moves(events, calls), steps))
    held = (row for rows in logs.values() for row in rows if row["event"] == "held")
    released = sum(row["seconds"] for row in held if steps[0] < row["time"] <= steps[1]) / WORKERS
    waited = sum(length(_within(_waiting(rank, events, of_rank, moves), steps)) for rank, of_rank in calls.items())
    whole, count = steps[1] - steps[0], len(closed) - 1
    spilled = sum(row["bytes"] for row in events if row["event"] == "spilled") / len(closed)
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


def _logs(run: RunDirectory) -> Iterator[tuple[int, Path]]:
    for rank in range(WORKERS):
        yield rank, run.worker_log(0, f"worker-{rank}")


def _of_log(begun: Row, rows: Sequence[Row]) -> tuple[tuple[int, str, int], Span]:
    """A call of a worker, and when it was at it: by its own log."""
    ended = next(row["time"] for row in rows if row["event"] == "held" and _unit(row) == _unit(begun))
    return _unit(begun), (begun["time"], ended)


def _moves(events: Sequence[Row], calls: dict[int, list[tuple[tuple[int, str, int], Span]]]) -> Iterator[Span]:
    for row in events:
        if row["event"] == "moved":
            ends = [end for rank in row["ranks"] for _, (_, end) in calls[rank] if end <= row["time"]]
            yield max([row["time"] - row["seconds"], *ends]), row["time"]


def _waiting(
    rank: int, events: Sequence[Row], calls: Sequence[tuple[tuple[int, str, int], Span]], moves: Sequence[Span]
) -> list[Span]:
    """When a worker had been sent a call and was at nothing."""
    begun = {unit: begin for unit, (begin, _) in calls}
    sent = ((row["time"], _unit(row)) for row in events if row["event"] == "sent" and rank in row["ranks"])
    asked = united((time, begun[unit]) for time, unit in sent if unit in begun)
    busy = united([*(span for _, span in calls), *moves])
    return _without(asked, busy)


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


def _within(spans: Sequence[Span] | Iterator[Span], whole: Span) -> list[Span]:
    cut = ((max(begin, whole[0]), min(end, whole[1])) for begin, end in spans)
    return [(begin, end) for begin, end in cut if begin < end]


def _unit(row: Row) -> tuple[int, str, int]:
    return row["step"], row["call"], row["part"]
