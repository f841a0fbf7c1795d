"""A classifier as transformers has it: `…ForSequenceClassification` of any family, and its tokenizer."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from hpcrl.errors import DataError

_NO_TOKEN = -1
"""Called padding where none is needed: no row has it, so that the last token of each is read."""
_BOUNDLESS = 1 << 30
"""Tokenizers without a bound have one above this."""


class OwnTokens:
    """A classifier's own tokenizer. Its model reads at most `positions` tokens, where that is known."""

    def __init__(self, folder: Path, positions: int | None) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise _no_classifier(folder, error) from None
        self._tokenizer.truncation_side = "left"
        self.longest: int = min(self._tokenizer.model_max_length, positions or self._tokenizer.model_max_length)

    @property
    def padding(self) -> int | None:
        """The token that it calls padding."""
        own = self._tokenizer.pad_token_id
        return None if own is None else int(own)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts, its special tokens with them; a longer text loses its beginning."""
        cut = {"truncation": True, "max_length": self.longest} if self.longest < _BOUNDLESS else {}
        return [list(map(int, self._tokenizer(text, **cut)["input_ids"])) for text in texts]


class Classifier:
    """Scores rows of tokens. `label` is the one whose probability counts; a model of one label gives its number."""

    def __init__(self, folder: Path, label: int | None, dtype: torch.dtype, device: torch.device, most: int) -> None:
        from transformers import AutoModelForSequenceClassification

        try:
            model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except (OSError, ValueError) as error:
            raise _no_classifier(folder, error) from None
        self._model = model.to(device).eval().requires_grad_(False)
        self._label = label
        self._device = device
        self._most = most
        self.tokens = OwnTokens(folder, getattr(model.config, "max_position_embeddings", None))

    @property
    def known(self) -> int:
        """How many tokens it has an embedding for."""
        return int(self._model.get_input_embeddings().num_embeddings)

    def score(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """A number per row, in passes of at most `most` tokens, padding included; rows of like lengths go together."""
        scores = np.zeros(len(rows))
        order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
        while order:
            count = max(1, self._most // max(1, len(rows[order[0]])))
            taken, order = order[:count], order[count:]
            scores[taken] = self._pass([rows[i] for i in taken])
        return scores.tolist()

    def _pass(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        padding = self._padding(rows)
        if padding is not None:
            return self._padded(rows, padding)
        alike = [list(of_length) for _, of_length in groupby(rows, len)]
        return np.concatenate([self._padded(of_length, _NO_TOKEN) for of_length in alike])

    def _padded(self, rows: Sequence[Sequence[int]], padding: int) -> np.ndarray:
        longest = max(map(len, rows))
        tokens = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], device=self._device)
        lengths = torch.tensor([len(row) for row in rows], device=self._device)
        mask = (torch.arange(longest, device=self._device) < lengths[:, None]).long()
        # A decoder's score is read at the last token that is not padding, whatever the mask says.
        self._model.config.pad_token_id = padding
        with torch.no_grad():
            logits = self._model(input_ids=tokens, attention_mask=mask).logits.double()
        if self._label is None:
            return logits[:, 0].cpu().numpy()
        if self._model.config.problem_type == "multi_label_classification":
            return logits.sigmoid()[:, self._label].cpu().numpy()
        return logits.softmax(-1)[:, self._label].cpu().numpy()

    def _padding(self, rows: Sequence[Sequence[int]]) -> int | None:
        """A token that is in no row: a row may end with the one that is called padding. None where all are in some."""
        found, known = {token for row in rows for token in row}, self.known
        own = self.tokens.padding
        # A tokenizer may have been given padding for which the model has no row.
        if own is not None and own < known and own not in found:
            return own
        return next((token for token in range(known) if token not in found), None)


def _no_classifier(folder: Path, error: Exception) -> DataError:
    return DataError(f"{folder} is no classifier that transformers can load: {error}.")
