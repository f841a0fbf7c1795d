"""Writes a model as transformers and vLLM load it, file after file, without torch. Publishing it is the caller's part.

A critic is saved as `…ForTokenClassification` with one label (`score.weight`, `score.bias`: a value a token), a
reward model as `…ForSequenceClassification` with one label (`score.weight`: read at the last token).
"""

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.data.tokens import TOKENIZER_FILES
from hpcrl.durable.behind import WrittenBehind
from hpcrl.durable.padding import say_padding
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.reader import config_to_json, family_of, parameters_of
from hpcrl.families.tensors import STORED
from hpcrl.ops.stored import stored_blocks

MAX_FILE_BYTES = 5_000_000_000
INDEX = "model.safetensors.index.json"

Source = Callable[[Parameter], np.ndarray]
"""A whole parameter, when it is asked for."""


@dataclass(frozen=True)
class ModelFolder:
    """Which files a model becomes, of tensors of one `dtype` ("float32", "bfloat16", "float64")."""

    config: DecoderConfig
    dtype: str
    files: Mapping[str, tuple[Parameter, ...]]
    """Name → the parameters whose tensors it holds."""

    @staticmethod
    def of(config: DecoderConfig, dtype: str, max_file_bytes: int = MAX_FILE_BYTES) -> "ModelFolder":
        """A parameter's tensors are in one file."""
        from huggingface_hub import split_state_dict_into_shards_factory

        itemsize = STORED[dtype][1].itemsize
        plan = split_state_dict_into_shards_factory(
            {parameter.name: parameter.numel * itemsize for parameter in parameters_of(config)},
            get_storage_size=lambda size: size,
            filename_pattern="model{suffix}.safetensors",
            max_shard_size=max_file_bytes,
        )
        named = {parameter.name: parameter for parameter in parameters_of(config)}
        files = {file: tuple(named[name] for name in names) for file, names in plan.filename_to_tensors.items()}
        return ModelFolder(config, dtype, files)

    def write_file(self, folder: Path, file: str, source: Source) -> None:
        """One file of tensors. Holds one parameter at a time, and some rows of a tensor."""
        header, end = self._header(file)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with WrittenBehind(folder / file) as opened:
            opened.write(np.frombuffer(struct.pack("<Q", len(text)) + text, np.uint8))
            for parameter in self.files[file]:
                self._write(opened, parameter, source)
        assert (folder / file).stat().st_size == 8 + len(text) + end, file

    def write_description(self, folder: Path, tokenizer_from: Path | str | None) -> None:
        """What else a folder has: config.json, the index of several files, the tokenizer's files."""
        padding = None
        if tokenizer_from is not None:
            copy_tokenizer(tokenizer_from, folder)
            padding = say_padding(folder, self.config) if self.config.head == "reward" else None
        fields = config_to_json(self.config, self.dtype) | (padding or {})
        (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
        if len(self.files) > 1:
            headers = {file: self._header(file) for file in self.files}
            names = {name: file for file, (header, _) in headers.items() for name in header if name != "__metadata__"}
            total = sum(end for _, end in headers.values())
            index = {"metadata": {"total_size": total}, "weight_map": names}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def _header(self, file: str) -> tuple[dict[str, Any], int]:
        """What safetensors says first, and how many bytes of tensors follow."""
        kind, numbers = STORED[self.dtype]
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for parameter in self.files[file]:
            for piece in family_of(self.config).pieces(self.config, parameter):
                shape = list(piece.stored_shape(parameter))
                begin, end = end, end + int(np.prod(shape)) * numbers.itemsize
                header[piece.name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
        return header, end

    def _write(self, opened: WrittenBehind, parameter: Parameter, source: Source) -> None:
        for block in stored_blocks(self.config, parameter, source(parameter), self.dtype):
            opened.write(block)
        opened.wait()


def write_model(
    folder: Path,
    config: DecoderConfig,
    dtype: str,
    source: Source,
    *,
    tokenizer_from: Path | str | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """The whole folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    files = ModelFolder.of(config, dtype, max_file_bytes)
    for file in files.files:
        files.write_file(folder, file, source)
    files.write_description(folder, tokenizer_from)


def copy_tokenizer(source: Path | str, folder: Path | str) -> None:
    """Copy the tokenizer's files that are there, byte for byte; the model has a config.json of its own."""
    for name in TOKENIZER_FILES:
        if name != "config.json" and (path := Path(source) / name).is_file():
            shutil.copyfile(path, Path(folder) / name)
