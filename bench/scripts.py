"""The figures of bench scripts that stand alone and print a JSON line for each."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import idle_slots
from figures import Figure, median

ROOT = Path(__file__).parent.parent
RENDEZVOUS_ROUNDS = 3


class ScriptFailedError(Exception):
    """A script ended with an error; the message is the end of what it said."""


def lines(script: str) -> list[dict[str, Any]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "bench" / script)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ScriptFailedError(f"{script} ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def models(script: str = "models.py") -> list[Figure]:
    return [
        Figure(
            row["name"],
            row["ratio"],
            "×",
            f"≥ {row['target']}",
            f"hpcrl {row['ours']:.2f} s, transformers {row['theirs']:.2f} s",
        )
        for row in lines(script)
    ]


def segments() -> list[Figure]:
    return [
        Figure(
            row["name"],
            row["ratio"],
            "×",
            "" if row["target"] is None else f"≤ {row['target']}",
            f"in segments {row['in_segments']:.1f} s, at once {row['at_once']:.1f} s; {row['alike']} responses alike",
        )
        for row in lines("segments.py")
    ]


def in_flight() -> list[Figure]:
    whole, flying = idle_slots.idle_whole(), idle_slots.idle_in_flight()
    return [
        Figure("idle slots, a step draws what it trains on", 100 * whole, "%"),
        Figure("idle slots, 320 prompts in flight", 100 * flying, "%", "≤ 15"),
    ]


def training() -> list[Figure]:
    """A step of the native engine with its optimizer; the loss of both sides is compared by the script."""
    return [
        Figure(
            f"{row['what'].replace('_', ' ')} through the engine, {row['texts']} texts, against padded transformers",
            row["ratio"],
            "×",
            "≥ 2.2" if row["what"] == "forward_backward" else "",
            f"hpcrl {row['hpcrl_s']:.2f} s, transformers {row['peer_s']:.2f} s; "
            f"{row['tokens']} tokens, padded {row['padded_tokens']}",
        )
        for row in lines("training.py")
    ]


def adapters() -> list[Figure]:
    """Of peers that can do it in several ways the fastest; the script compares the losses of all."""
    return [
        Figure(
            row["what"],
            row["ratio"],
            "×",
            f"≥ {row['target']}" if row["target"] else "",
            f"hpcrl {row['hpcrl_s']:.2f} s, {row['peer']} {row['peer_s']:.2f} s{row['others']}",
        )
        for row in lines("adapters.py")
    ]


def rendezvous() -> list[Figure]:
    """Medians of several runs."""
    runs = [lines("rendezvous.py") for _ in range(RENDEZVOUS_ROUNDS)]
    return [
        Figure(
            first["name"],
            median([run[i]["value"] for run in runs]),
            "",
            (first["target"] or "").replace("<=", "≤"),
            f"median of {RENDEZVOUS_ROUNDS}",
        )
        for i, first in enumerate(runs[0])
    ]
