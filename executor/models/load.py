"""One way to a model: a GGUF file's path, a Hugging Face config's, or a preset's name."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Final

from executor.errors import HprofError, did_you_mean
from executor.model import Model, ModelShape
from executor.models.file_tensors import needed_tensors
from executor.models.from_gguf import model_from_gguf
from executor.models.from_tensors import model_from_tensors
from executor.models.hf_config import read_config
from executor.models.mixtures import MIXTURE_NAMES, MixturePlan
from executor.models.presets import load_preset, preset_names
from executor.models.synthetic import QuantPlan, SyntheticSource, TypeOfTensor, TypesInTurn, model_tensors
from executor.quants import QUANTS, quant_type

_MAX_MODEL_BYTES: Final = 2**60


def load_model(
    spec: str, quant: str | None = None, layers: int | None = None, seed: int = 0, *, computes: bool = True
) -> Model:
    """The model that `spec` names: a GGUF file, a Hugging Face config (ends in .json), else a preset.

    `quant` stores synthetic matrices in that type, or as llama.cpp's mixture of that name has them (a GGUF file's are
    what they are), `layers` keeps only the first so many, `seed` makes a preset's or config's weights. Where nothing is
    computed (`computes`), a file of any architecture and quant type is what its tensors say. HprofError says what is
    wrong with any of them.
    """
    if spec.endswith(".json"):
        return _from_config(spec, quant, layers, seed)
    if spec not in preset_names() and os.path.isdir(spec):  # noqa: PTH112 - Path raises where a name is too long
        raise HprofError(_folder(spec))
    if spec.endswith(".gguf") or "/" in spec or os.path.isfile(spec):  # noqa: PTH113
        if quant is not None:
            raise HprofError(f"--quant {quant} works on presets and configs only; {spec} holds its own quant types.")
        return _from_file(spec, layers, computes=computes)
    return _from_preset(spec, quant, layers, seed)


def _folder(path: str) -> str:
    """Why a folder is no model, and what in it is one."""
    config = Path(path, "config.json")
    if config.is_file():
        return f"{path} is a folder; its config is what to give: hprof run --config {config}, or hprof models {config}."
    return f"{path} is a folder and holds no config.json; give a GGUF file, a Hugging Face config.json or a preset."


def _from_preset(name: str, quant: str | None, layers: int | None, seed: int) -> Model:
    preset = load_preset(name)
    return _synthetic(_sliced(preset.shape, layers), preset.quant, quant, seed, f"preset:{name}")


def _from_config(path: str, quant: str | None, layers: int | None, seed: int) -> Model:
    shape, published = read_config(Path(path))
    return _synthetic(_sliced(shape, layers), published, quant, seed, f"config:{path}")


def _synthetic(shape: ModelShape, published: QuantPlan, quant: str | None, seed: int, origin: str) -> Model:
    tensors = model_tensors(shape, published if quant is None else plan_of(quant, shape))
    if (n_bytes := sum(tensor.n_bytes for tensor in tensors.values())) > _MAX_MODEL_BYTES:
        raise HprofError(f"{origin} describes a model of {n_bytes:.1e} bytes, which cannot be; correct its numbers.")
    return Model(shape, tensors, SyntheticSource(tensors, seed), origin)


def plan_of(quant: str, shape: ModelShape) -> TypeOfTensor:
    """What `--quant` asks for: one type for all matrices, several (with commas) of which each layer has the next, or a
    mixture of llama.cpp's; HprofError lists them.
    """
    if quant.upper() in MIXTURE_NAMES:
        return MixturePlan(shape, quant.upper())
    types = tuple(_known_type(name.strip()) for name in quant.split(","))
    return QuantPlan.uniform(types[0]) if len(types) == 1 else TypesInTurn(types)


def _known_type(quant: str) -> str:
    if quant.upper() not in QUANTS:
        near = did_you_mean(quant, [name.lower() for name in (*QUANTS, *MIXTURE_NAMES)])
        known = f"choose one of {', '.join(QUANTS)}, or of llama.cpp's mixtures {', '.join(MIXTURE_NAMES)}."
        raise HprofError(f"--quant {quant[:40]}: that type is not known; {near or known}")
    return quant_type(quant).name


def _from_file(path: str, layers: int | None, *, computes: bool) -> Model:
    try:
        model = model_from_gguf(path)
    except HprofError as error:
        if computes:
            raise
        return _of_tensors(path, layers, error)
    shape = _sliced(model.shape, layers)
    return dataclasses.replace(model, shape=shape, tensors=needed_tensors(shape, model.tensors))


def _of_tensors(path: str, layers: int | None, refusal: HprofError) -> Model:
    """What the tensors say, of a file that hprof refuses to compute; raises the refusal where they say nothing."""
    try:
        model = model_from_tensors(path, _reason(str(refusal), path))
    except HprofError:
        raise refusal from None
    shape = _sliced(model.shape, layers)
    kept = {n: info for n, info in model.tensors.items() if info.layer is None or info.layer < len(shape.layers)}
    return dataclasses.replace(model, shape=shape, tensors=kept)


def _reason(refusal: str, path: str) -> str:
    """A refusal without the file's name and its advice."""
    return refusal.removeprefix(f"{path}:").split(";")[0].strip()


def _sliced(shape: ModelShape, layers: int | None) -> ModelShape:
    if layers is None or layers == len(shape.layers):
        return shape
    if not 0 < layers < len(shape.layers):
        raise HprofError(f"--layers {layers}: {shape.name} has {len(shape.layers)} layers; give 1 to that many.")
    note = f"only the first {layers} of {len(shape.layers)} layers"
    return dataclasses.replace(shape.sliced(layers), notes=(*shape.notes, note))
