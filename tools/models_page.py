"""docs/models.md: what each family reads, can be and refuses, from the declarations alone.

`make docs` writes the page; a test compares it with what the declarations say now.
"""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcrl.families.family import FAMILIES, Family
from hpcrl.families.fields import HARMLESS, ROTARY_FIELDS, Fields
from hpcrl.plugins import find, names

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
HEAD = """# Models

The families that run on hpcrl's own engine: packed rows, shared prefixes, any (dp, tp, pp) layout, cached generation,
checkpoints of any layout, Hugging Face folders in and out. `make docs` makes this page from the declarations in
`hpcrl/families/`; do not edit it. A folder's `model_type` chooses the family, or `<role>.family` does.

What a config.json says is read field by field. A field that is listed nowhere here is refused by its name and value,
since it may change the mathematics; so is a value that no model can be made of. `hpcrl plan` says what each
role's model is. A model that is refused so is computed by transformers instead, as [the last section](#any-other-model)
says, unless `<role>.model` is `own`.

Every family has three heads: logits (`…ForCausalLM`), a value a token (`…ForTokenClassification` with one label), and a
score, read at the last token (`…ForSequenceClassification` with one label). Folders are safetensors, in one file or in
several with an index; what is exported has the names and shapes that it was read with, and transformers loads it.

tp cuts heads, neurons and tokens of the vocabulary, so it has to divide the query heads and the neurons; where there
are fewer key and value heads than tp, several workers have one of them. pp needs a block for each stage.

Experts drop no token. Every tensor-parallel worker has some of the neurons of each, or, with `<role>.experts: whole`,
some experts whole, whose number tp then has to divide. Routers' own losses (`<role>.router_aux_coef`,
`<role>.router_z_coef`) are over the whole mini-batch. A train_step reports both without their weights, as
`router_aux_loss` (as many as a token's experts where all are used alike) and `router_z_loss`, and as `router_max_share`
how much of a block's choices its fullest expert has, in the block where that is most. Where neither loss has a weight,
they are of the rows that the step reads anyway: in the last block, those of labels.

A sliding window is exact in training, packed rows, shared prefixes and generation; the cache of a block with a window
holds the window only.

A softcap keeps attention's scores or the logits within its bounds: c · tanh(x / c). Logits are capped before the
temperature. No kernel of PyTorch caps scores: without flash-attn ([backends.md](backends.md#attention)) attention is
then computed by plain products, block by block and at least in fp32, on GPUs too: slower than flash attention, in
bounded memory.
"""
FOREIGN = """## Any other model

`<role>.model` says whose code computes a role: `own`, `transformers`, or (`auto`, the default) hpcrl's own wherever it
knows every field of config.json, and else transformers'. `hpcrl plan` says which it is and why. Such a role is as any
other: the same losses, checkpoints, digests, moves and exports. It differs in this:

- **Which models.** Every `model_type` with a class for `AutoModelForCausalLM`. A critic or reward head needs a class
  for `AutoModelForTokenClassification` that ends in one linear module; OPT, OLMo 2, Granite and Mamba, for example,
  have none. Code of the folder's own (`auto_map`), pickled weights, quantised weights, encoders with decoders and
  rope of type `longrope` are refused before submission. A model whose tensors transformers rearranges when it loads
  them is refused when a worker loads it, apart from experts, which it stacks; so is one whose head does more than a
  scale, a softcap and a bias.
- **Layouts and backends.** It is whole while it computes: `d` only, under `native`, `fsdp`, `zero1`, `zero2` or
  `zero3`. Of experts, `fsdp` gives each worker some whole ones. Routers' own losses are refused.
- **Packed or padded.** Texts are packed, prompts shared, and attention computed by hpcrl's kernels, windows and
  softcaps too, where that gives what one text after another gives. Each worker tries it when it makes the model, with
  texts longer than any window and parameters made for the purpose, so that the answer is the same everywhere and
  after every resume; all workers of a role do alike. What fails is padded, in batches of texts of like length with at
  most a third of padding (of one length, where padding changes them), and a worker says so while it loads. Packed are
  Llama, Qwen 2 and 3, Mistral, Gemma 1 and 2, GPT-2, OPT, GPT-NeoX, Phi, OLMo 2, OLMoE, Granite and Mixtral; padded
  are Bloom, Falcon, Mamba and StableLM.
- **Logits** arise where labels are, in chunks, as of hpcrl's own models. Dropout is off.
- **Generation** goes over transformers' own cache. Rows of equally long prompts are generated side by side, at most
  `generation.slots` of them; a batch is made smaller when half of its rows have ended. Draws follow from the same
  seeds as ever, so greedy responses are those of `generate`.
- **Adapters** may be beside the linear modules of its blocks ([lora.md](lora.md)).
- **Exports** have every tensor and every field of config.json that the folder had; only a tied copy of the embedding
  is left out, and names get the prefix that folders of a trunk alone lack.
- **A run that exists** may change to it and back, with its checkpoints
  ([backends.md](backends.md#other-code-for-a-run-that-exists)).
- **Sizes** come from the tensors' headers; what a call takes beside them is estimated as of a Llama of that size.
- Where config.json names no longest text (Bloom, Mamba), it is 131,072 tokens.
"""
SWITCHED_ON = {"use_sliding_window": True}
"""What lets a family ask for more."""


def page() -> str:
    """The whole text."""
    declared = {name: find(FAMILIES, name, "family") for name in names(FAMILIES)}
    parts = [HEAD, "| model_type | |", "|---|---|"]
    parts += [f"| [`{name}`](#{name}) | {_about(name)} |" for name in declared]
    for name, family in declared.items():
        parts += ["", *_family(name, family)]
    return "\n".join([*parts, "", *_shared()]) + "\n"


def _about(name: str) -> str:
    """The first sentence of its file."""
    text = " ".join((inspect.getdoc(import_module(f"hpcrl.families.{name}")) or "").split("\n\n")[0].split())
    return text.rstrip(".")


def _family(name: str, family: Family) -> Iterator[str]:
    asked, only = _read(name, family)
    heads = ", ".join(f"`{family.architecture}{suffix}` ({kind})" for suffix, kind in family.heads.items())
    yield from (f"## {name}", "", f"{_about(name)}.", "", f"Heads: {heads}.", "")
    yield f"Reads {', '.join(f'`{field}`' for field in sorted(asked - only.keys()))}."
    yield ""
    values = ", ".join(f"`{field}` = {_shown(value)}" for field, value in sorted(only.items()))
    yield f"Refuses other values than {values}."


def _read(name: str, family: Family) -> tuple[set[str], dict[str, Any]]:
    """The fields that it asks for, and those that may have one value only."""
    asked: set[str] = set()
    only: dict[str, Any] = {}
    for values in ({}, SWITCHED_ON):
        fields = Fields(values, name, family.architecture, family.heads)
        family.read(fields)
        asked |= fields.asked.keys()
        only |= fields.only
    return asked, only


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


def _shared() -> Iterator[str]:
    yield from ("## All families", "")
    yield f"Rope types: {', '.join(f'`{kind}`' for kind in ROTARY_FIELDS)}; `rope_parameters` or `rope_scaling`."
    yield ""
    yield f"Fields that no number depends on: {', '.join(f'`{name}`' for name in sorted(HARMLESS))}."
    yield from ("", *FOREIGN.splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
