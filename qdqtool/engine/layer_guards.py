# SPDX-License-Identifier: Apache-2.0
"""Guards that only rules/gpu_layers.toml names: what decides about a layer of the engine, not about a Q/DQ pair."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtool.engine.engine_view import EngineView
from qdqtool.graph.view import attribute
from qdqtool.graph.weighted import pair_behind, weight_index
from qdqtool.match.constraints import Constraint, computed, inference
from qdqtool.match.residual import able_branches, branch_weights
from qdqtool.match.site import MatchSite

_NATIVE = frozenset({"Relu", "Clip"})


def quantized(site: MatchSite) -> bool:
    """It does not read both its activation and its weight in one number format."""
    return isinstance(site.view, EngineView) and site.view.multiplies(site.node) is not None


def float_weight(site: MatchSite) -> bool:
    """Its weight is quantized, or its statistics are computed."""
    start = site.start or site.node
    index = weight_index(site.view, start)
    return inference(site) and (index is None or pair_behind(site.view, start.inputs[index]) is None)


def pooled_int8(site: MatchSite) -> bool:
    """Something reads the pool in float, or with another scale."""
    return isinstance(site.view, EngineView) and site.view.wanted_coding(site.node.outputs[0]) is not None


def epilogue(site: MatchSite) -> bool:
    """The convolution has one input channel and the activation is neither ReLU nor Clip."""
    start = site.start or site.node
    if site.node.op in _NATIVE:
        return True
    index = weight_index(site.view, start)
    tensor = None if index is None else site.view.constant_tensor(start.inputs[index])
    groups = attribute(start, "group", 1)
    return tensor is None or len(tensor.dims) < 2 or tensor.dims[1] * (groups if isinstance(groups, int) else 1) > 1


def residual_projection(site: MatchSite) -> bool:
    """The Add fuses with its other branch, or has none that is computed."""
    if not computed(site):
        return False
    able = able_branches(site)
    if len(able) == 2:
        first, second = branch_weights(site.view, able[0], able[1])
        able = [able[0] if first < second else able[1]]
    return able == [site.entry]


GUARDS: Mapping[str, Constraint] = {
    function.__name__: function for function in (quantized, float_weight, pooled_int8, epilogue, residual_projection)
}
