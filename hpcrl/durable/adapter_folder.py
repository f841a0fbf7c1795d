"""A model with adapters as others load it: merged with them, and in a folder of its own what PEFT loads.

Writes file after file, without torch. Of the model's own weights it reads one parameter at a time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hpcrl.durable.model_folder import ModelFolder, Source
from hpcrl.families.adapter_files import CONFIG, TENSORS, adapter_config
from hpcrl.families.adapters import Target, adapted_targets, layers_by_matrix
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.reader import family_of, parameters_of
from hpcrl.families.stored import read_tensor, tensor_places
from hpcrl.families.tensors import parameter_of, rounded, widened

FOLDER = "adapter"
"""Where the adapters are, beside the model that they make."""


@dataclass(frozen=True)
class AdapterFolder:
    """What is written of one that has adapters, in numbers of `dtype`; its `base` is the folder that it began from,
    whose config.json says `stored`."""

    config: DecoderConfig
    stored: DecoderConfig
    dtype: str
    base: Path

    @cached_property
    def model(self) -> ModelFolder:
        return ModelFolder.of(self.config.base, self.dtype)

    @cached_property
    def adapters(self) -> ModelFolder:
        return ModelFolder(self.config, self.dtype, {TENSORS: parameters_of(self.config)})

    @property
    def files(self) -> Sequence[str]:
        return (*self.model.files, f"{FOLDER}/{TENSORS}")

    def write_file(self, folder: Path, file: str, trained: Source) -> None:
        """`trained` gives what is trained."""
        if file in self.model.files:
            self.model.write_file(folder, file, lambda parameter: self._merged(parameter, trained))
            return
        (folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
        self.adapters.write_file(folder / FOLDER, TENSORS, trained)

    def write_description(self, folder: Path, tokenizer_from: Path | str | None) -> None:
        self.model.write_description(folder, tokenizer_from)
        (folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
        fields = adapter_config(self.config, str(self.base))
        (folder / FOLDER / CONFIG).write_text(json.dumps(fields, indent=2) + "\n")

    @cached_property
    def _trained(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in parameters_of(self.config)}

    @cached_property
    def _layers(self) -> dict[str, tuple[Target, ...]]:
        return dict(layers_by_matrix(adapted_targets(self.config, family_of(self.config.base))))

    def _merged(self, parameter: Parameter, trained: Source) -> np.ndarray:
        """As the engine's own merged matrices are, to the bit: of rounded numbers, formed in at least fp32."""
        if parameter.name in self._trained:
            return trained(self._trained[parameter.name])
        places = tensor_places(self.base, self.stored)
        whole = parameter_of(self.stored, parameter, lambda name: read_tensor(self.base, *places[name]))
        if parameter.name not in self._layers:
            return whole
        assert self.config.adapters is not None
        merged = widened(rounded(whole, self.dtype)).copy()
        for layer in self._layers[parameter.name]:
            down, up = (widened(rounded(trained(self._trained[name]), self.dtype)) for name in layer.names)
            down, up = (up.T, down.T) if layer.turned else (down, up)
            begin = layer.begin(1)
            scale = merged.dtype.type(self.config.adapters.scale)
            for row in range(len(merged)):
                merged[row, begin : begin + up.shape[1]] += scale * _product(down[row], up)
        return merged


def _product(down: np.ndarray, up: np.ndarray) -> np.ndarray:
    """A row of A · B, added up in the order of the rank, each product and each sum rounded."""
    total = down[0] * up[0]
    for factor, row in zip(down[1:], up[1:], strict=True):
        total += factor * row
    return total
