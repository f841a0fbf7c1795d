"""Runs as another hpcrl would have written them."""

import json

from hpcrl.durable.rundir import RunDirectory


def of_format(run: RunDirectory, number: int) -> None:
    """Let a run have this format; 0 is that of a time when none was written down."""
    record = json.loads(run.run_json.read_bytes())
    record.pop("format")
    if number:
        record["format"] = number
    run.run_json.write_text(json.dumps(record))
