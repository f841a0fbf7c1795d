"""Which models the installed transformers has, by the text of its files: importing it would load torch."""

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

CAUSAL = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
TOKENS = "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"
"""What transformers calls its tables from model_type to class."""


@dataclass(frozen=True)
class LibraryModel:
    """One model_type of transformers."""

    causal: str
    """The class with a vocabulary head."""
    tokens: str | None
    """The one that gives numbers for each token, where there is one whose head is a single linear module."""
    prefix: str
    """What begins the names of the tensors that both have."""
    head: str
    """The module at the end of the second class."""
    linear: Mapping[str, bool] = field(default_factory=dict, hash=False)
    """What its linear modules are called → whether their tensors are [in, out]."""


UNKNOWN = LibraryModel("", None, "", "")


def library_model(model_type: str) -> LibraryModel | None:
    """None where transformers has no decoder of this type."""
    root = _root()
    if root is None or (causal := _tables(root)[CAUSAL].get(model_type)) is None:
        return None
    tokens = _tables(root)[TOKENS].get(model_type)
    text = _text(root, model_type, causal)
    prefix = re.search(r'base_model_prefix = "(\w+)"', text)
    head = None if tokens is None else _head(text, tokens)
    trunk = prefix[1] if prefix else "model"
    return LibraryModel(causal, tokens if head else None, trunk, head or "", dict(_linear(text)))


@cache
def _root() -> Path | None:
    """The folder of the package; None where it is not installed."""
    found = importlib.util.find_spec("transformers")
    return None if found is None or found.origin is None else Path(found.origin).parent


@cache
def _tables(root: Path) -> Mapping[str, Mapping[str, str]]:
    tree = ast.parse((root / "models/auto/modeling_auto.py").read_text(encoding="utf-8"))
    found: dict[str, Mapping[str, str]] = {CAUSAL: {}, TOKENS: {}}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.targets[0])
            if name in found:
                found[name] = dict(ast.literal_eval(node.value.args[0]))
    return found


def _text(root: Path, model_type: str, name: str) -> str:
    """The file that has a class; usually in the folder that is called as the type is."""
    models = root / "models"
    likely = models / model_type / f"modeling_{model_type}.py"
    others = (path for path in sorted(models.glob("*/modeling_*.py")) if path != likely)
    for path in (likely, *others):
        if path.is_file() and f"class {name}(" in (text := path.read_text(encoding="utf-8")):
            return text
    return ""


def _linear(text: str) -> Iterator[tuple[str, bool]]:
    """Names of modules of the classes that multiply by a matrix; not where others, a kernel say, multiply by it."""
    for name, made in re.findall(r"self\.(\w+) = (?:\w+\.)*\w*(Linear|Conv1D)\(", text):
        if not any(f"self.{name}.weight{used}" in text for used in (" @", ",\n")):
            yield name, made == "Conv1D"


def _head(text: str, name: str) -> str | None:
    """The only linear module of labels that a class makes, or that of those which transformers makes for all."""
    found = re.search(rf"^class {name}\((.*?)\):(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        return None
    if "GenericForTokenClassification" in found[1]:
        return "score"
    own = re.findall(r"self\.(\w+) = nn\.Linear\([^)\n]*num_labels\)", found[2])
    return own[0] if len(own) == 1 else None
