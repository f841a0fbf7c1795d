"""Models with PEFT's adapters, what they say and learn; engines that begin from such, and their exports."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.adapted import ADAPTERS, trained_of
from support.layouts import OPTIMIZER, ROWS, columns_of, objective
from support.tiny import WITH_NOBODY, engine_of

from hpcrl.durable.adapter_folder import FOLDER, AdapterFolder
from hpcrl.engines.adapters import adapted_in_flat_buffers
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Update
from hpcrl.families.adapter_files import adapter_config
from hpcrl.families.config import HeadKind
from hpcrl.families.reader import Kind
from hpcrl.models.pretrained import load_adapters, load_pretrained, read_config

EVERY = range(len(ROWS))


def peft_model(base: Path, task: str, targets: Any, **changes: Any) -> Any:
    """PEFT's, whose second matrices are random too."""
    from peft import LoraConfig, get_peft_model

    options = {"r": 4, "lora_alpha": 12, "target_modules": targets, "task_type": task, **changes}
    model = get_peft_model(hugging_face(base, task), LoraConfig(**options))
    draw = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(0.2 * torch.randn(parameter.shape, generator=draw))
    return model


def hugging_face(folder: Path, task: str) -> Any:
    import transformers

    made = {"CAUSAL_LM": "AutoModelForCausalLM", "TOKEN_CLS": "AutoModelForTokenClassification"}[task]
    return getattr(transformers, made).from_pretrained(folder, dtype=torch.float32).eval()


def said(model: Any) -> torch.Tensor:
    """Log-probabilities, or values, of the labels of all rows, one text after another."""
    found, ends = [], np.cumsum(ROWS.lengths)
    for end, length, labels in zip(ends, ROWS.lengths, ROWS.labels, strict=True):
        tokens = torch.from_numpy(ROWS.tokens[end - length : end]).long()[None]
        logits = model(input_ids=tokens[:, :-1]).logits[0, -labels:]
        if logits.shape[-1] == 1:
            found.append(logits[:, 0])
        else:
            found.append((logits / 0.8).log_softmax(-1).gather(-1, tokens[0, -labels:, None])[:, 0])
    return torch.cat(found)


def beside_base(base: Path, adapters: Path | None, head: HeadKind, kind: Kind = "own") -> ComposedEngine:
    """An engine of a folder's model with all adapters that it can have: a folder's, or new."""
    config, parameters = load_pretrained(base, kind=kind, head=head, trained=True)
    config = replace(config, adapters=ADAPTERS)
    transformer = adapted_in_flat_buffers(config, WITH_NOBODY, torch.float32, torch.device("cpu"))
    engine = engine_of(transformer, optimizer=OPTIMIZER)
    beside = dict(load_adapters(config, adapters))
    engine.fill([*(it for it in parameters if it[0] not in beside), *beside.items()])
    return engine


def peft_steps(model: Any, updates: int = 3) -> None:
    """The same objective, clipping and AdamW over torch's."""
    columns = {name: torch.from_numpy(it).float() for name, it in columns_of(EVERY).labels.items()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter.dim() > 1]
    groups = [
        {"params": decayed, "weight_decay": OPTIMIZER.weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER.lr, eps=OPTIMIZER.eps, betas=OPTIMIZER.betas)
    for _ in range(updates):
        optimizer.zero_grad()
        (columns["weights"] * columns["advantages"] * said(model).square()).sum().backward()
        torch.nn.utils.clip_grad_norm_(trained, OPTIMIZER.grad_clip)
        optimizer.step()


def check_beside_peft(tmp_path: Path, task: str, kind: Kind = "own", **changes: Any) -> None:
    """Of the model in the folder `base`: we load what PEFT writes, learn what it learns, and PEFT loads ours."""
    head: HeadKind = "vocabulary" if task == "CAUSAL_LM" else "value"
    config = read_config(tmp_path / "base", kind=kind)
    named = adapter_config(replace(config, adapters=ADAPTERS), "")["target_modules"]
    theirs = peft_model(tmp_path / "base", task, named, **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    engine = beside_base(tmp_path / "base", tmp_path / "theirs", head, kind)
    np.testing.assert_allclose(engine.forward(ROWS, 0.8), said(theirs).detach(), rtol=1e-5, atol=1e-5)
    for i in range(3):
        engine.train_batch(ROWS, columns_of(EVERY), objective(False), Update(1, i, 3))
    peft_steps(theirs)
    after = engine.forward(ROWS, 0.8)
    np.testing.assert_allclose(after, said(theirs).detach(), rtol=1e-5, atol=1e-5)
    write(engine, tmp_path / "base", tmp_path / "ours", kind)
    from peft import PeftModel

    loaded = PeftModel.from_pretrained(hugging_face(tmp_path / "base", task), tmp_path / "ours" / FOLDER).eval()
    np.testing.assert_allclose(said(loaded).detach(), after, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(said(hugging_face(tmp_path / "ours", task)).detach(), after, rtol=1e-5, atol=1e-5)
    again = beside_base(tmp_path / "base", tmp_path / "ours" / FOLDER, head, kind)
    np.testing.assert_array_equal(again.forward(ROWS, 0.8), after)


def write(engine: ComposedEngine, base: Path, folder: Path, kind: Kind = "own") -> None:
    """What is exported of an engine."""
    of_folder = read_config(base, kind=kind)
    adapted = replace(engine._model.transformer.config, adapters=ADAPTERS)
    written = AdapterFolder(adapted, of_folder, "float32", base)
    folder.mkdir()
    parameters = trained_of(engine)
    for file in written.files:
        written.write_file(folder, file, lambda parameter: parameters[parameter.name].numpy())
    written.write_description(folder, None)
