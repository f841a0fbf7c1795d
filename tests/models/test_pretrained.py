import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import (
    LLAMA3_ROPE,
    YARN_ROPE,
    gpt2_config,
    qwen3_config,
    save_hugging_face_model,
    tiny_config,
    tiny_model,
)

from hpcrl.data.tokens import TOKENIZER_FILES
from hpcrl.engines.flat import new_model
from hpcrl.errors import DataError
from hpcrl.families.reader import family_of, parameters_of
from hpcrl.models.packing import Packing
from hpcrl.models.pretrained import (
    load_pretrained,
    read_config,
    save_pretrained,
    write_random_pretrained,
)

TOKENS = torch.tensor([5, 9, 60, 2, 2, 31, 7])


def logits_in_transformers(folder, architecture="AutoModelForCausalLM"):
    import transformers

    theirs = getattr(transformers, architecture).from_pretrained(folder, dtype="auto").eval()
    with torch.no_grad():
        return theirs(TOKENS[None], use_cache=False).logits[0], theirs


def hidden(model):
    return model.hidden(TOKENS, Packing.of([len(TOKENS)])).detach()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("llama", {"head_dim": 16}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"rope_parameters": YARN_ROPE | {"rope_theta": 500.0, "truncate": False, "mscale": 0.7}}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 8}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
        ("gemma", {}),
        ("gemma2", {}),
        ("gemma3_text", {}),
        ("qwen3", {"tie_word_embeddings": True}),
        ("gpt2", {}),
        ("gpt2", {"tie_word_embeddings": False}),
        ("llama", {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 500.0}}),
    ],
)
@pytest.mark.parametrize("max_file_bytes", [10**9, 20_000])
def test_a_folder_loads_saves_and_loads_in_transformers_with_equal_tensors(tmp_path, family, changes, max_file_bytes):
    theirs = save_hugging_face_model(tmp_path / "in", family, **changes)
    model = new_model(tmp_path / "in")
    save_pretrained(tmp_path / "out", model.config, model.views, max_file_bytes=max_file_bytes)
    logits, again = logits_in_transformers(tmp_path / "out")
    for name, parameter in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], parameter), name
    torch.testing.assert_close(logits, theirs(TOKENS[None], use_cache=False).logits[0], atol=1e-6, rtol=0)


def test_sharded_folders_are_read_and_written_with_an_index(tmp_path):
    save_hugging_face_model(tmp_path / "one", "qwen2")
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = new_model(tmp_path / "one"), new_model(tmp_path / "many")
    assert torch.equal(one.memory.data, many.memory.data)
    save_pretrained(tmp_path / "ours", many.config, many.views, max_file_bytes=20_000)
    index = json.loads((tmp_path / "ours" / "model.safetensors.index.json").read_text())
    files = {file.name: load_file(file) for file in (tmp_path / "ours").glob("*.safetensors")}
    assert {name: file for file, tensors in files.items() for name in tensors} == index["weight_map"]
    bytes_of_files = [sum(tensor.nbytes for tensor in tensors.values()) for tensors in files.values()]
    assert sum(bytes_of_files) == index["metadata"]["total_size"]
    assert max(bytes_of_files) <= 20_000


@pytest.mark.parametrize(("config", "prefix"), [(tiny_config, "Qwen2"), (qwen3_config, "Qwen3"), (gpt2_config, "GPT2")])
@pytest.mark.parametrize(
    ("head", "architecture"), [("value", "ForTokenClassification"), ("reward", "ForSequenceClassification")]
)
def test_a_critic_loads_in_transformers_with_equal_values(tmp_path, config, prefix, head, architecture):
    model = tiny_model(config(head=head))
    with torch.no_grad():
        for name, view in model.views.items():
            if name.endswith("head_bias"):
                view.fill_(0.7)
    save_pretrained(tmp_path, model.config, model.views)
    logits, theirs = logits_in_transformers(tmp_path, "AutoModel" + architecture)
    assert type(theirs).__name__ == prefix + architecture
    values = model.output.values(hidden(model))
    torch.testing.assert_close(logits.flatten(), values if head == "value" else values[-1:], atol=1e-5, rtol=0)
    assert torch.equal(new_model(tmp_path).memory.data, model.memory.data)


def test_a_critic_made_of_a_language_model_keeps_its_trunk_and_draws_its_head_by_seed(tmp_path):
    write_random_pretrained(tmp_path, tiny_config(), seed=0)
    actor, critic = new_model(tmp_path), new_model(tmp_path, head="value", seed=5)
    assert torch.equal(hidden(actor), hidden(critic))
    same, other = (new_model(tmp_path, head="value", seed=seed) for seed in (5, 6))
    assert torch.equal(critic.memory.data, same.memory.data)
    assert not torch.equal(critic.memory.data, other.memory.data)


def test_a_critic_made_of_a_reward_model_keeps_its_head(tmp_path):
    reward = tiny_model(tiny_config(head="reward"))
    save_pretrained(tmp_path, reward.config, reward.views)
    critic = new_model(tmp_path, head="value")
    assert torch.equal(critic.output.values(hidden(critic)), reward.output.values(hidden(reward)))


def test_bf16_tensors_are_saved_as_bf16(tmp_path):
    model = tiny_model(dtype=torch.bfloat16)
    save_pretrained(tmp_path, model.config, model.views)
    _, theirs = logits_in_transformers(tmp_path)
    assert theirs.dtype == torch.bfloat16
    assert torch.equal(new_model(tmp_path, dtype=torch.bfloat16).memory.data, model.memory.data)


def test_the_tokenizers_files_and_token_ids_are_kept(tmp_path):
    save_hugging_face_model(tmp_path / "in", "qwen2", eos_token_id=[2, 9])
    kept = [name for name in TOKENIZER_FILES if "config.json" not in name]
    for name in kept:
        (tmp_path / "in" / name).write_bytes(name.encode() * 3)
    model = new_model(tmp_path / "in")
    save_pretrained(tmp_path / "out", model.config, model.views, tokenizer_from=tmp_path / "in")
    for name in kept:
        assert (tmp_path / "out" / name).read_bytes() == name.encode() * 3
    assert read_config(tmp_path / "out").eos_token_ids == (2, 9)


def test_a_copy_of_the_tied_embedding_in_the_folder_is_ignored(tmp_path):
    save_hugging_face_model(tmp_path, "qwen2", tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file)
    assert new_model(tmp_path).config.shares_embedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_output_matrix_of_its_own_in_a_tied_models_folder_is_refused_with_both_names(tmp_path, dtype):
    save_hugging_face_model(tmp_path, "qwen2", tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    other = tensors["model.embed_tokens.weight"].clone()
    other[-1, -1] += 1
    save_file(tensors | {"lm_head.weight": other}, file)
    with pytest.raises(DataError) as raised:
        new_model(tmp_path)
    assert "tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight" in str(raised.value)


def test_an_old_gpt2_folder_names_its_tensors_without_their_prefix_and_holds_masks(tmp_path):
    save_hugging_face_model(tmp_path, "gpt2")
    new, file = new_model(tmp_path), tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 128, 128), "h.2.attn.masked_bias": torch.tensor(-1e4)}
    save_file(tensors | masks, file)
    assert torch.equal(new_model(tmp_path).memory.data, new.memory.data)
    save_file(tensors | {"h.0.attn.c_attn.bias": torch.ones(3), "h.0.other": torch.ones(3)}, file)
    with pytest.raises(DataError) as raised:
        new_model(tmp_path)
    assert "account for: h.0.other." in str(raised.value)
    assert "h.0.attn.c_attn.bias is [3]; config.json makes it [96]" in str(raised.value)


def broken(tmp_path, change):
    save_hugging_face_model(tmp_path, "qwen2")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return tmp_path


def test_missing_strange_and_misshaped_tensors_are_refused_by_name(tmp_path):
    norm = "model.layers.1.input_layernorm.weight"
    with pytest.raises(DataError, match=norm):
        new_model(broken(tmp_path, lambda tensors: tensors.pop(norm)))
    with pytest.raises(DataError, match=r"does not account for: model\.layers\.0\.self_attn\.q_norm\.weight"):
        new_model(broken(tmp_path, lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)})))


EMBEDDING, GATE = "model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight"
NORM, BIAS = "model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (EMBEDDING, torch.ones(64, 16), r"is \[64, 16\]; config.json makes it \[64, 32\]"),
        (EMBEDDING, torch.ones(15, 32), r"is \[15, 32\]; config.json makes it \[64, 32\]"),
        (GATE, torch.ones(48, 16), r"is \[48, 16\]; config.json makes it \[48, 32\]"),
        (GATE, torch.tensor(1.0), r"is \[\]; config.json makes it \[48, 32\]"),
        (NORM, torch.ones(3), r"is \[3\]; config.json makes it \[32\]"),
        (BIAS, torch.ones(32, 1), r"is \[32, 1\]; config.json makes it \[32\]"),
        ("lm_head.weight", torch.ones(1, 32), r"is \[1, 32\]; config.json makes it \[64, 32\]"),
        (GATE, torch.ones(48, 32, dtype=torch.int8), r"is stored as I8; supported are float64, float32, bfloat16"),
    ],
)
def test_a_damaged_tensor_is_refused_naming_file_tensor_and_shape(tmp_path, name, tensor, message):
    folder = broken(tmp_path, lambda tensors: tensors.update({name: tensor}))
    for head in (None, "value"):
        with pytest.raises(DataError, match=rf"{folder}/model\.safetensors: {name} {message}"):
            new_model(folder, head=head)


@pytest.mark.parametrize(
    ("own", "wanted"),
    [("value", "vocabulary"), ("reward", "vocabulary"), ("value", "reward"), ("vocabulary", "reward")],
)
def test_no_head_but_a_value_head_is_made_up(tmp_path, own, wanted):
    write_random_pretrained(tmp_path, tiny_config(head=own), seed=0)
    with pytest.raises(DataError, match=f"architectures names a model with a {own} head; one with a {wanted} head"):
        new_model(tmp_path, head=wanted)


def sharded(folder):
    model = tiny_model()
    save_pretrained(folder, model.config, model.views, max_file_bytes=20_000)
    return folder, sorted(folder.glob("*.safetensors"))[1]


def test_a_shard_that_is_missing_cut_short_or_another_is_refused_by_name(tmp_path):
    folder, shard = sharded(tmp_path)
    whole, pointer = shard.read_bytes(), b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n"
    for damaged in (pointer, whole[:-7], whole[:3], b""):
        shard.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{shard} is not the safetensors file.*git lfs pull"):
            new_model(folder)
    save_file({"other": torch.ones(1)}, shard)
    with pytest.raises(DataError, match=rf"{shard} is not the safetensors file"):
        new_model(folder)
    shard.unlink()
    with pytest.raises(DataError, match=rf"{shard} does not exist"):
        new_model(folder)
    shard.mkdir()
    with pytest.raises(DataError, match=rf"{shard} is not the safetensors file"):
        new_model(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "has no weight_map"),
        ('{"weight_map": [1]}', "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "has no weight_map"),
        ("[]", "holds a list; a JSON object"),
    ],
)
def test_an_index_without_a_weight_map_is_refused_by_name(tmp_path, text, message):
    folder, _ = sharded(tmp_path)
    index = folder / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(DataError, match=rf"{index} {message}"):
        new_model(folder)


def test_a_single_file_that_is_a_pointer_is_refused_by_name(tmp_path):
    write_random_pretrained(tmp_path, tiny_config(), seed=0)
    file = tmp_path / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DataError, match=rf"{file} is not the safetensors file"):
        new_model(tmp_path)


def test_folders_without_safetensors_or_config_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"config\.json does not exist"):
        load_pretrained(tmp_path)
    write_random_pretrained(tmp_path, tiny_config(), seed=0)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match="safe_serialization"):
        new_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match="is no JSON"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(DataError, match="holds a list; a JSON object is needed"):
        load_pretrained(tmp_path)


def test_a_file_exceeds_the_bound_only_for_one_large_parameter(tmp_path):
    model = tiny_model()
    save_pretrained(tmp_path, model.config, model.views, max_file_bytes=3_000)
    files = [load_file(file) for file in tmp_path.glob("*.safetensors")]
    large = [set(tensors) for tensors in files if sum(tensor.nbytes for tensor in tensors.values()) > 3_000]
    assert 1 < len(large) < len(files)
    parameters = [
        {piece.name for piece in family_of(model.config).pieces(model.config, parameter)}
        for parameter in parameters_of(model.config)
    ]
    assert all(names in parameters for names in large)
