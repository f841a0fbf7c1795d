"""A classifier of transformers: padding and the order of rows change no score; labels give probabilities."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.tiny_tokenizer import train_tokenizer
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

from hpcrl.errors import DataError
from hpcrl.models.classifier import Classifier

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
ROWS = [[3, 4, 5], [6], [7, 8, 9, 10, 11, 2], [3, 4, 5, 0], [12] * 9]


def decoder(folder: Path, labels: int) -> torch.nn.Module:
    config = LlamaConfig(vocab_size=300, num_labels=labels, max_position_embeddings=32, **SIZES)
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model


def encoder(folder: Path, labels: int) -> torch.nn.Module:
    config = BertConfig(vocab_size=300, num_labels=labels, max_position_embeddings=32, **SIZES)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("make", [decoder, encoder])
@pytest.mark.parametrize("labels", [1, 3])
def test_a_score_is_that_of_the_row_alone(
    tmp_path: Path, make: Callable[[Path, int], torch.nn.Module], labels: int
) -> None:
    torch.manual_seed(1)
    model = make(tmp_path, labels)
    train_tokenizer(tmp_path, ["1+2=3"], size=300)
    label = None if labels == 1 else 2
    scores = Classifier(tmp_path, label, torch.float32, torch.device("cpu"), most=20).score(ROWS)
    for row, score in zip(ROWS, scores, strict=True):
        with torch.no_grad():
            (logits,) = model(input_ids=torch.tensor([row])).logits.double()
        expected = logits[0] if label is None else logits.softmax(-1)[label]
        assert score == pytest.approx(float(expected), abs=1e-6)


def test_rows_that_leave_no_token_for_padding_are_scored_all_the_same(tmp_path: Path) -> None:
    torch.manual_seed(2)
    config = LlamaConfig(vocab_size=6, num_labels=1, max_position_embeddings=32, pad_token_id=5, **SIZES)
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    train_tokenizer(tmp_path, ["1+2=3"], size=300)
    rows = [[0, 1, 5], [2], [3, 4, 0], [5], [1, 1, 5, 5]]
    scores = Classifier(tmp_path, None, torch.float32, torch.device("cpu"), most=100).score(rows)
    model.config.pad_token_id = None
    with torch.no_grad():
        alone = [float(model(input_ids=torch.tensor([row])).logits) for row in rows]
    assert scores == pytest.approx(alone, abs=1e-6)


def test_a_text_is_read_by_its_end_where_it_is_too_long(tmp_path: Path) -> None:
    decoder(tmp_path, 1)
    train_tokenizer(tmp_path, ["1+2=3"], size=300)
    tokens = Classifier(tmp_path, None, torch.float32, torch.device("cpu"), most=64).tokens
    short, long = tokens.encode(["1+2", "9" * 40 + "1+2"])
    assert len(long) == tokens.longest == 32 and long[-len(short) :] == short


def test_a_folder_that_is_no_classifier_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no classifier that transformers can load"):
        Classifier(tmp_path, None, torch.float32, torch.device("cpu"), most=64)
