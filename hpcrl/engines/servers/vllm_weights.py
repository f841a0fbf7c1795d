"""New weights for vLLM, file after file while they are still being written. It imports nothing of hpcrl.

Who writes has a lock for as long, and a file gets its name when it is whole. So who reads never waits for a writer
that is gone, however it went.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

LOCK, LOOK_S = "lock", 0.001


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """While files come into a folder. Raises OSError."""
    with open(folder / LOCK, "wb", opener=_private) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def arriving(folder: Path, files: Sequence[str]) -> Iterator[Path]:
    """Each of the files once it is there; fewer where nobody is writing any more. Raises OSError."""
    with open(folder / LOCK, "rb") as lock:
        for path in map(folder.joinpath, files):
            while not path.exists():
                if _is_free(lock) and not path.exists():
                    return
                time.sleep(LOOK_S)
            yield path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def _is_free(lock: Any) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Extension:
    """What vLLM mixes into each of its workers, by this name: so nothing is pickled for them to run."""

    def take_weights(self, folder: str, files: Sequence[str]) -> bool:
        """Read the weights of files of safetensors; whether all came. If not, layers have new weights or old ones.

        A head that is the embedding has on CPUs a packed copy, which vLLM does not renew. Raises RuntimeError where a
        layer has kept its old weights, of which vLLM only warns. It warns of buffers too.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        worker: Any = self
        come: list[Path] = []
        heard, logger = BufferingHandler(1 << 20), logging.getLogger("vllm")
        logger.addHandler(heard)
        try:
            worker.reload_weights(weights_iterator=_tensors(arriving(Path(folder), files), come))
        finally:
            logger.removeHandler(heard)
        if len(come) < len(files):
            return False
        layers = list(worker.model_runner.get_model().modules())
        due = {type(layer).__name__ for layer in layers if _has_weights(layer)}
        if getattr(worker.model_config.hf_text_config, "tie_word_embeddings", False):
            due -= {ParallelLMHead.__name__}
        if stale := [said for it in heard.buffer if _tells_of_old(said := it.getMessage(), due)]:
            raise RuntimeError(f"vLLM has kept old weights: {'; '.join(stale)}")
        for head in (layer for layer in layers if isinstance(layer, ParallelLMHead)):
            head.quant_method.process_weights_after_loading(head)
        return True


def _tensors(paths: Iterator[Path], come: list[Path]) -> Iterator[tuple[str, Any]]:
    """What the files have; each is added to `come`."""
    from safetensors import safe_open

    for path in paths:
        come.append(path)
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)


def _has_weights(layer: Any) -> bool:
    """Whether a folder has any for it here. It may have buffers alone, or rows of a vocabulary that only fill it up."""
    rows = getattr(layer, "shard_indices", None)
    return any(True for _ in layer.parameters(recurse=False)) and (rows is None or rows.num_org_elements > 0)


def _tells_of_old(said: str, due: Set[str]) -> bool:
    """Whether vLLM says so that weights are missing which layers of these types have."""
    layer, names_it, _ = said.partition(": Failed to load weights")
    return layer in due if names_it else "weights were not loaded" in said
