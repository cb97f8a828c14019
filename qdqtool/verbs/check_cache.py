# SPDX-License-Identifier: Apache-2.0
"""What `qdqtool cache check` finds: a cache against the tensors, the constants and the Q/DQ pairs of a model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqtool.cache.check import CacheCheck, PairCheck, check
from qdqtool.cache.text import Cache, scale_hex
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView
from qdqtool.passes.quant_params import pair_scale
from qdqtool.precision.casts import take_out_types, types_over_pairs
from qdqtool.precision.widen import as_fp32
from qdqtool.verbs.export_evidence import export_evidence, tensor_names


def check_cache(model: ModelSource, cache: Cache) -> CacheCheck:
    """Hold a cache against a model, plain or with Q/DQ.

    Types that `insert` and `graft` gave a model are seen through, and what Q and DQ make is no tensor of its own.

    Raises:
        QdqError: a model that cannot be opened, a scale of a pair that is no constant.
    """
    opened = open_model(model)
    record = types_over_pairs(opened.proto)
    if record is not None:
        opened = take_out_types(opened, record)
    view = as_fp32(opened).view
    made = {name for node in view.every if node.op in (QUANTIZE, DEQUANTIZE) for name in node.outputs}
    floats, others = tensor_names(opened)
    names = [name for name in floats if name not in made]
    evidence, pairs = export_evidence(opened, cache), check_pairs(view, cache.entries)
    operators = {node.proto.name: node.outputs[0] for node in view.nodes if node.proto.name and node.outputs}
    return check(cache, names, others, evidence, pairs, operators)


def check_pairs(view: GraphView, entries: Mapping[str, np.float32]) -> PairCheck | None:
    """Compare the scale of every pair on a computed tensor with the cache's, bit for bit; None where there is no pair.

    Raises:
        QdqError: a scale that is no constant.
    """
    same, lacking = list[str](), list[str]()
    differing: dict[str, tuple[str, str]] = {}
    for name, pairs in view.pairs.items():
        if view.is_constant(name):
            continue
        if name not in entries:
            lacking.append(name)
            continue
        found = [pair_scale(view, pair).bits for pair in pairs]
        other = [bits for bits in found if bits.tobytes() != entries[name].tobytes()]
        if other:
            digits = scale_hex(other[0].reshape(-1)[0])
            differing[name] = digits, scale_hex(entries[name])
        else:
            same.append(name)
    return PairCheck(tuple(same), differing, tuple(lacking)) if same or differing or lacking else None
