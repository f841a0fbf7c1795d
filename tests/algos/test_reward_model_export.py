"""A trained reward model in transformers: the same scores, for texts of any length in one padded batch."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.hosts import LETTERS, export_role, write_model
from support.pairs import reward_model_experiment
from support.tiny import engine_of
from torch.nn.utils.rnn import pad_sequence

from hpcrl.algos.reward_model import RewardModel
from hpcrl.data.samples import SequenceSample
from hpcrl.data.tokens import load_tokens
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.checkpoints import write_shard
from hpcrl.durable.files import Files
from hpcrl.durable.shards import span_state
from hpcrl.engines.flat import new_model
from hpcrl.errors import DataError
from hpcrl.workers.host import Work

TEXTS = [("1+1=", "2", "11"), ("12+30=", "# 42", "9"), ("0+0=", "", "# 0 0 0 0")]


def name_padding(folder, token):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": token}))


def export(engine, folder):
    """out/, of an engine of the model in in/."""
    experiment = reward_model_experiment()
    trained = replace(experiment.reward_model, path=str(folder / "in"))
    shard = engine.snapshot()
    state = {"spans": span_state(shard.spans), **shard.state}
    written = write_shard(Files(folder), folder / "shards", "reward_model", 0, shard.arrays, state)
    export_role(replace(experiment, reward_model=trained), "reward_model", [folder / written.name], folder / "out")


@pytest.mark.parametrize("padding", [None, "<eos>", " "])
def test_exported_it_gives_the_same_scores(tmp_path, padding):
    transformers = pytest.importorskip("transformers")
    write_model(tmp_path / "in", LETTERS, max_positions=64)
    if padding is not None:
        name_padding(tmp_path / "in", padding)
    engine = engine_of(new_model(tmp_path / "in", head="reward", seed=4, trained=True))
    tokens = load_tokens(tmp_path / "in")
    prompts, *answers = zip(*TEXTS, strict=True)
    rows = {"prompts": tokens.encode_prompts(prompts), "margins": [np.zeros(1, np.float32)] * 3}
    rows |= dict(zip(("chosen", "rejected"), map(tokens.encode_answers, answers), strict=True))
    batch = SequenceSample.from_rows(["0@0", "1@0", "2@0"], rows)
    call = MFC("eval", "reward_model", "evaluate", ())
    made = RewardModel(engine, reward_model_experiment()).evaluate(Work(1, "eval", 0, batch), call).sample
    export(engine, tmp_path)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert theirs.config.num_labels == 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.pad_token_id == theirs.config.pad_token_id not in (None, tokens.eos_id)
    sides = (batch.rows(key) for key in ("chosen", "rejected"))
    texts = [torch.tensor([*p, *a]) for side in sides for p, a in zip(batch.rows("prompts"), side, strict=True)]
    inputs = pad_sequence(texts, batch_first=True, padding_value=theirs.config.pad_token_id)
    lengths = torch.tensor([len(text) for text in texts])
    with torch.no_grad():
        logits = theirs(inputs, attention_mask=torch.arange(inputs.shape[1]) < lengths[:, None]).logits[:, 0]
    ours = np.concatenate([made.data["chosen_scores"], made.data["rejected_scores"]])
    np.testing.assert_allclose(logits.numpy(), ours, rtol=1e-5, atol=1e-6)


def test_a_head_for_rewards_is_made_up_only_where_it_is_trained(tmp_path):
    write_model(tmp_path, LETTERS, max_positions=64)
    assert new_model(tmp_path, head="reward", trained=True).config.head == "reward"
    with pytest.raises(DataError, match="one with a reward head is needed"):
        new_model(tmp_path, head="reward")
