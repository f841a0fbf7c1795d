"""What the demo begins with: sums, a tokenizer in which every digit is a token, a small model of transformers' form."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from hpcrl.rewards.gsm8k import score

SCRIPT = Path(__file__).parents[2] / "examples" / "addition" / "make_data.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_data", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def material(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("addition")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["make_data.py", "--out", str(folder), "--seed", "1"])
        script.main()
    return folder


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_sum_is_there_once_and_no_test_sum_is_trained_on(material: Path) -> None:
    train, test = read(material / "train.jsonl"), read(material / "test.jsonl")
    ids = [row["id"] for row in train + test]
    assert len(ids) == len(set(ids)) == 90 * 90
    assert len(test) == 500


def test_every_answer_is_right_for_the_reward_of_gsm8k(material: Path) -> None:
    for row in read(material / "train.jsonl") + read(material / "test.jsonl"):
        first, second = row["prompt"].removesuffix("=").split("+")
        assert row["answer"] == f"#### {int(first) + int(second)}"
        assert score(row["answer"], row) == 1.0


def test_a_digit_is_a_token_and_the_hashes_are_one(material: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(material / "model" / "tokenizer.json"))
    encoded = tokenizer.encode("37+58=#### 95")
    assert encoded.tokens == ["3", "7", "+", "5", "8", "=", "#### ", "9", "5"]
    assert tokenizer.decode(encoded.ids) == "37+58=#### 95"
    assert tokenizer.token_to_id("<eos>") not in encoded.ids


def test_transformers_loads_tokenizer_and_model_as_they_are(material: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = "37+58=#### 95"
    theirs = AutoTokenizer.from_pretrained(material / "model")
    ours = Tokenizer.from_file(str(material / "model" / "tokenizer.json"))
    assert theirs(text).input_ids == ours.encode(text).ids
    assert len(theirs) == ours.get_vocab_size()
    assert theirs.eos_token_id == ours.token_to_id("<eos>")
    model = AutoModelForCausalLM.from_pretrained(material / "model")
    assert model.config.model_type == "qwen2"
    assert 100_000 <= model.num_parameters() <= 1_000_000


def test_the_seed_changes_the_model_and_nothing_else(script: ModuleType, material: Path, tmp_path: Path) -> None:
    for seed, same in ((1, True), (2, False)):
        folder = tmp_path / str(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["make_data.py", "--out", str(folder), "--seed", str(seed)])
            script.main()
        for name in ("train.jsonl", "test.jsonl", "model/tokenizer.json", "model/config.json"):
            assert (folder / name).read_bytes() == (material / name).read_bytes()
        weights = "model/model.safetensors"
        assert ((folder / weights).read_bytes() == (material / weights).read_bytes()) is same
