"""A round of responses in flight: the next segment of each that has not ended, and nothing of the others."""

from collections.abc import Sequence

import numpy as np

from hpcrl.config.generation import GenerationConfig
from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Engine
from hpcrl.workers.host import Outcome, Work

SO_FAR = ("responses", "logprobs", "versions")


def draw_on(engine: Engine, config: GenerationConfig, run_seed: int, work: Work, call: MFC) -> Outcome:
    """prompts, and of samples that were begun all that the round before made → responses, logprobs, finished, versions,
    whole, of all samples and from their first token on.

    A response has its seed from its sample alone: it is the same in whichever rounds and steps it is drawn.
    """
    batch, segment = work.batch, config.segment
    assert segment is not None, "the check of the settings wants one"
    count = len(batch.ids)
    begun = dict(zip(SO_FAR, (_rows(batch, key, count) for key in SO_FAR), strict=True))
    finished, whole = ([bool(row.any()) for row in _rows(batch, key, count)] for key in ("finished", "whole"))
    going = [row for row in range(count) if not whole[row]]
    lengths = [len(row) for row in begun["responses"]]
    prompts = batch.rows("prompts")
    made = engine.generate(
        [prompts[row] for row in going],
        [sample_seed(run_seed, 0, call.name, batch.ids[row]) for row in going],
        config,
        [begun["responses"][row].astype(np.int32) for row in going],
        [min(config.max_new_tokens, lengths[row] + segment) for row in going],
    )
    rows = {key: list(of_key) for key, of_key in begun.items()}
    for row, tokens, logprobs, ended in zip(going, *made, strict=True):
        drawn = (tokens, logprobs, np.full(len(tokens), work.version, np.int64))
        for key, new in zip(SO_FAR, drawn, strict=True):
            rows[key][row] = np.concatenate([begun[key][row].astype(new.dtype), new])
        finished[row] = ended
        whole[row] = ended or len(rows["responses"][row]) >= config.max_new_tokens
    flags = {"finished": finished, "whole": whole}
    sample = SequenceSample.from_rows(
        batch.ids, {**rows, **{key: [np.array([flag]) for flag in of_key] for key, of_key in flags.items()}}
    )
    return Outcome(sample, _statistics(work.version, rows, finished, [row for row in going if whole[row]], going))


def _rows(batch: SequenceSample, key: str, count: int) -> list[np.ndarray]:
    """What there is of each sample; nothing where none was begun."""
    return batch.rows(key) if key in batch.keys else [np.zeros(0)] * count


def _statistics(
    version: int,
    rows: dict[str, list[np.ndarray]],
    finished: Sequence[bool],
    ended: Sequence[int],
    going: Sequence[int],
) -> dict[str, tuple[float, float]]:
    """Of the responses that end in this round; `open` is the share of all that it continues, `staleness` by how many
    versions the actors that drew a token are older than the newest, in the mean over tokens."""
    lengths = [len(rows["responses"][row]) for row in ended]
    behind = [float((version - rows["versions"][row]).sum()) for row in ended]
    return {
        "open": (float(len(going)), float(len(finished))),
        "response_length": (float(sum(lengths)), float(len(ended))),
        "finished": (float(sum(finished[row] for row in ended)), float(len(ended))),
        "staleness": (sum(behind), float(sum(lengths))),
    }
