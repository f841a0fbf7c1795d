"""Runs whose journal and archives are written as a master writes them, without running anything."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support.miniature import make_run

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.archives import About, text_row, write_archive
from hpcrl.durable.journal import Adopted, Archived, Closed, encode_line, open_journal
from hpcrl.durable.rundir import RunDirectory

COMPONENTS = ("right", "format")


def begin_attempt(run: RunDirectory, adopted: Adopted | None = None) -> int:
    number = run.claim_attempt("s")
    run.files.publish(run.adopted(number), encode_line(adopted or Adopted((), {})), "adopted")
    return number


def response(prompt: str, text: str, **given: Any) -> dict[str, Any]:
    """A row of an archive: each character is a token. `given` are a reward, its components, numbers of tokens, …"""
    count = len(text)
    row: dict[str, Any] = {
        "prompts": np.arange(len(prompt), dtype=np.int32),
        "prompts.text": text_row(prompt),
        "prompts.ends": np.arange(1, len(prompt) + 1, dtype=np.int32),
        "responses": np.arange(count, dtype=np.int32),
        "responses.text": text_row(text),
        "responses.ends": np.arange(1, count + 1, dtype=np.int32),
        "finished": np.array([given.get("finished", True)]),
        "ended": text_row(given.get("ended", "eos")),
        "logprobs": np.full(count, -0.5, np.float32),
        "ref_logprobs": np.full(count, -0.75, np.float32),
        "rewards": np.array([given.get("reward", 0.0)], np.float32),
        "reward_components": np.array([given.get("right", 0.0), given.get("format", 0.0)], np.float32),
        "reward_details": text_row(json.dumps(given["details"])) if "details" in given else text_row(""),
        "record": text_row(json.dumps({"prompt": prompt, **given.get("record", {})})),
    }
    if "advantages" in given:
        row["advantages"] = np.array(given["advantages"], np.float32)
    return row


def write_step(
    run: RunDirectory, attempt: int, step: int, rows: Mapping[str, Mapping[str, Any]], data_set: str = "train"
) -> Archived:
    """`rows` are by sample; the line that names the archive."""
    keys = next(iter(rows.values()))
    columns = {key: [row[key] for row in rows.values()] for key in keys}
    sample = SequenceSample.from_rows(list(rows), columns)
    return Archived(step, write_archive(run, attempt, About(step, COMPONENTS), {data_set: sample}))


def kept_run(root: Path, steps: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> RunDirectory:
    """A run with these rows at these steps."""
    run = make_run(root)
    number = begin_attempt(run)
    write_lines(run, number, [write_step(run, number, step, rows) for step, rows in steps.items()])
    return run


def write_lines(run: RunDirectory, attempt: int, lines: Sequence[Archived]) -> None:
    journal = open_journal(run.files, run.journal(attempt))
    journal.append([event for line in lines for event in (Closed(line.step, {}), line)])
    journal.close()
