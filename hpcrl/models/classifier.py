"""A classifier as transformers has it: `…ForSequenceClassification` of any family, with its tokenizer."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hpcrl.errors import DataError


class Classifier:
    """Scores rows of tokens. `label` is the one whose probability counts; a model of one label gives its number."""

    def __init__(self, folder: Path, label: int | None, dtype: torch.dtype, device: torch.device, most: int) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype, local_files_only=True)
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise DataError(f"{folder} is no classifier that transformers can load: {error}.") from None
        self._model = model.to(device).eval().requires_grad_(False)
        self._label = label
        self._device = device
        self._most = most
        self._tokenizer.truncation_side = "left"

    @property
    def longest(self) -> int:
        """Tokens that it can read at most."""
        positions = getattr(self._model.config, "max_position_embeddings", None)
        return min(self._tokenizer.model_max_length, positions or self._tokenizer.model_max_length)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts by its own tokenizer, its special tokens with them; a longer text loses its beginning."""
        cut = {"truncation": True, "max_length": self.longest} if self.longest < 1 << 30 else {}
        return [list(map(int, self._tokenizer(text, **cut)["input_ids"])) for text in texts]

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
        longest, padding = max(map(len, rows)), self._padding(rows)
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

    def _padding(self, rows: Sequence[Sequence[int]]) -> int:
        """A token that is in no row: a row may end with the one that is called padding."""
        found, own = {token for row in rows for token in row}, self._tokenizer.pad_token_id
        if own is not None and own not in found:
            return int(own)
        return next(token for token in range(len(found) + 1) if token not in found)
