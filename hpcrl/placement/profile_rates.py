"""Rates of devices out of what the steps of a profile have measured, and what a profile is not of. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hpcrl.families.config import DecoderConfig
from hpcrl.placement.data_sheets import CPU_CORE, rates_of_gpu
from hpcrl.placement.judges import models_held
from hpcrl.placement.memory import head_model
from hpcrl.placement.model_costs import block_shape
from hpcrl.placement.profile_points import PartTimes
from hpcrl.placement.profile_tasks import ProfiledModel, Told
from hpcrl.placement.rates import Curve, Fixed, Link, Links, Measured, Rates
from hpcrl.recipes.algorithm import algorithm_of

UNKNOWN_GPU = "A100"
"""Whose data sheet says what no profile measures of a GPU that has none: how fast attention is beside products."""


def rates_told(told: Sequence[Told], models: Mapping[str, ProfiledModel], call_ns: int, source: str) -> Rates:
    """Of what all steps have told."""
    node = next(it for it in told if it.what == "node")
    base = CPU_CORE if node.device == "cpu" else rates_of_gpu(node.device) or rates_of_gpu(UNKNOWN_GPU)
    assert base is not None, UNKNOWN_GPU
    links = {name: link for it in told for name, link in it.links.items()}
    near = _links(links, "near", base.near)
    pieces = tuple(_pieces(told, models))
    return msgspec.structs.replace(
        base,
        source=source,
        device=node.device,
        software=node.software,
        products={**base.products, **{dtype: Curve(tuple(points)) for dtype, points in node.products.items()}},
        bytes_per_s=node.bytes_per_s,
        copied_per_s=node.copied_per_s or None,
        memory=node.memory or base.memory,
        fixed=_fixed(pieces, base.fixed, call_ns),
        near=near,
        far=_links(links, "far", base.far),
        host=links["host"],
        disk=links["disk"],
        measured=pieces,
    )


def _links(links: Mapping[str, Link], side: str, base: Links) -> Links:
    names = (f"{side}_{name}" for name in Links.__struct_fields__)
    return Links(*map(links.get, names, msgspec.structs.astuple(base)))


def _pieces(told: Sequence[Told], models: Mapping[str, ProfiledModel]) -> Iterator[Measured]:
    """Of each part of each shape once: models may have some in common."""
    found: dict[Any, Measured] = {}
    for it in told:
        if it.model:
            of = models[it.model]
            parts = PartTimes(of.model, of.backend, of.dtype, it.tp, it.points).pieces()
            found = {piece.piece: piece for piece in parts} | found
    yield from found.values()


def _fixed(pieces: Sequence[Measured], base: Fixed, call_ns: int) -> Fixed:
    """What the smallest passes take, of models that were measured, counts for those that were not."""

    def least(part: str, of: str) -> int | None:
        taken = [it.surface.ns_xy[0][0] for it in pieces if (it.piece.part, it.piece.of) == (part, of)]
        return round(min(taken)) if taken else None

    return Fixed(
        block_ns=least("block", "decode") or base.block_ns,
        pass_ns=least("entry", "forward") or base.pass_ns,
        round_ns=least("head", "decode") or base.round_ns,
        call_ns=call_ns,
    )


def differences(experiment: Any, rates: Rates, installed: str) -> Iterator[str]:
    """What a profile is not of that this experiment has: models, types of numbers, the version of torch (`installed`;
    empty: not known), each in a sentence."""
    if not rates.measured:
        return
    if installed and rates.software and not is_of_torch(rates.software, installed):
        yield f"it was measured with {rates.software}, but torch {installed} is installed"
    algorithm = algorithm_of(experiment)
    called = algorithm.called(experiment)
    for role, config in models_held(experiment).items():
        if role not in called:
            continue
        wanted = (_block_of(head_model(role, config, algorithm)), config.backend, config.dtype)
        known = {(it.shape, it.backend, it.dtype) for it in rates.pieces if it.part == "block"}
        if wanted[0] and wanted not in known:
            has = "; ".join(" in ".join((shape, f"{backend} {dtype}")) for shape, backend, dtype in sorted(known))
            yield f"{role} has blocks of shape {wanted[0]} in {wanted[1]} {wanted[2]}, and it was measured of {has}"


def is_of_torch(software: str, installed: str) -> bool:
    """Whether what torch says of itself is the version that is installed. A wheel's metadata may leave out the build,
    which torch names (2.11.0+cu130): then that is not compared."""
    (version, _, build), (other, _, of_other) = (it.partition("+") for it in (software, f"torch {installed}"))
    return version == other and (build == of_other or not build or not of_other)


def _block_of(model: DecoderConfig) -> str:
    try:
        return block_shape(model)
    except AttributeError:  # a model of transformers has no such numbers, and no profile either
        return ""
