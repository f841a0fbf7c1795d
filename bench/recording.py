"""What it costs that workers measure what their calls do, and that samples are archived: both, in steps of PPO."""

import json
import shutil
import sys
from pathlib import Path

from against_trl import make_inputs
from duel import Side
from figures import Figure, median

ROUNDS = 3


def recording(work: Path) -> list[Figure]:
    """All of one process, with one thread."""
    model, run = str(make_inputs(work / "model")), work / "run"
    Path(model, "tokenizer_config.json").write_text(json.dumps({"eos_token": "<pad>"}))  # a master has to know one
    shutil.rmtree(run, ignore_errors=True)
    with Side(Path(sys.executable), "ppo_hpcrl.py", [model, str(run)], work / "recording.log") as side:
        rounds = [side.round() for _ in range(ROUNDS)]
    shutil.rmtree(run)
    own, archive, whole = ([found[what] for found in rounds] for what in ("own_s", "archive_s", "wall_s"))
    ratios = [wall / (wall - meter - kept) for meter, kept, wall in zip(own, archive, whole, strict=True)]
    rows, size = (int(rounds[0][what]) for what in ("archive_rows", "archive_bytes"))
    return [
        Figure(
            "a PPO step of four models whose calls are measured and whose samples are archived, over one without",
            median(ratios),
            "×",
            "≤ 1.01",
            f"of {median(whole):.1f} s {1e3 * median(own):.1f} ms to measure, and as much again at most for watching "
            f"that; {1e3 * median(archive):.1f} ms for the archive, which a run makes beside its work",
        ),
        Figure(
            f"time of an archive of {rows} of its rows",
            1e3 * median(archive),
            "ms",
            "",
            "its spills read, texts made of its tokens, written, flushed and published",
        ),
        Figure("its size", size / 1e3, "kB", "", f"{size / rows:,.0f} bytes a row, of 48 + 128 tokens"),
    ]
