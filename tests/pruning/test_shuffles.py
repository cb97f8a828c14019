# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Channel shuffles: found by what they do; several of them tie all channels together, and then one becomes a Gather."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from qdqtool import PruneOptions, prune
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.pruning.channel_groups import find_groups
from qdqtool.pruning.kept_channels import kept_of
from qdqtool.pruning.probe import ProbeRun, look, seeded_input
from qdqtool.pruning.shuffles import ChannelShuffle
from qdqtool.runtime.executor import Executor
from tests.graphs import model_of
from tests.pruning.nets import channels_of, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

HALF = 4  # channels of each half


def units(count: int) -> onnx.ModelProto:
    """Units of ShuffleNetV2: one half passes, the other goes through a convolution, then both are shuffled."""
    nodes = ["s0 = Conv(x, w)"]
    for unit in range(count):
        nodes += [
            f"p{unit} = Slice(s{unit}, zero, half, one)  q{unit} = Slice(s{unit}, half, whole, one)",
            f"b{unit} = Conv(q{unit}, v{unit})  c{unit} = Concat<axis=1>(p{unit}, b{unit})",
            f"r{unit} = Reshape(c{unit}, apart)  t{unit} = Transpose<perm=[0,2,1,3,4]>(r{unit})  s{unit + 1} = Reshape(t{unit}, back)",
        ]
    weights = ", ".join(f"float[{HALF},{HALF},1,1] v{unit}" for unit in range(count))
    sizes = f"int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] half = {{{HALF}}}, int64[1] whole = {{{2 * HALF}}}, int64[5] apart = {{1,2,{HALF},3,3}}, int64[4] back = {{1,{2 * HALF},3,3}}"
    text = f"g (float[1,3,3,3] x) => (float[1,2,3,3] y) <float[{2 * HALF},3,1,1] w, {weights}, float[2,{2 * HALF},1,1] u, {sizes}> {{ {'  '.join(nodes)}  y = Conv(s{count}, u) }}"
    model, random = model_of(text), np.random.default_rng(1)
    floats = [one for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT]
    return with_values(model, **{one.name: random.normal(size=one.dims) for one in floats})


def gathered(model: onnx.ModelProto) -> tuple[ChannelShuffle, ...]:
    view = GraphView(model.graph)
    return find_groups(view, look(ProbeRun(Model(model), [seeded_input(model.graph)]))).gathered


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def test_one_shuffle_stays_as_it_is() -> None:
    model = units(1)
    made = prune(model, options=PruneOptions(ratio=0.5)).model
    assert gathered(model) == () and ops(made) == ops(model)


def test_shuffles_that_tie_all_channels_together_become_a_gather() -> None:
    """Three units of two halves of four: by their ties one channel would take all others with it."""
    model = units(3)
    freed = gathered(model)
    channels = channels_of(model)
    assert 1 <= len(freed) < 3, "no more than needed"
    assert channels.prunable == channels.channels - 2, "all but the outputs"
    result = prune(model, options=PruneOptions(ratio=0.5))
    difference = result.done.difference
    assert difference is not None and difference.outputs < 1e-5 and difference.inside < 1e-5
    assert ops(result.model)["Gather"] == len(freed) and ops(result.model)["Transpose"] == 3 - len(freed)
    onnx.checker.check_model(result.model, full_check=True)


def test_what_was_between_is_noted_no_longer_and_what_stays_is() -> None:
    model = units(3)
    made = prune(model, options=PruneOptions(ratio=0.5)).model
    noted, names = kept_of(made), {name for node in made.graph.node for name in node.output}
    assert noted and set(noted) <= names
    feed = seeded_input(model.graph)
    shapes = {name: Executor(Model(made), [name]).run(feed)[name].shape for name in noted}
    assert all(shapes[name][one.axis] == len(one.places) for name, one in noted.items())


def test_the_channels_that_stay_come_in_the_order_of_the_shuffle() -> None:
    """Nothing is multiplied here but by 1: what comes out names the channels."""
    model = units(3)
    shuffle = gathered(model)[0]
    dealt = np.arange(2 * HALF).reshape(2, HALF).T.reshape(-1)
    assert shuffle.order.tolist() == dealt.tolist()
    assert [node.op for node in shuffle.nodes] == ["Reshape", "Transpose", "Reshape"]
    assert (shuffle.source[0], shuffle.made[0]) == ("c", "s") and [name[0] for name in shuffle.between] == ["r", "t"]


@pytest.mark.parametrize(
    "nodes",
    [
        "r = Reshape(a, apart)  t = Transpose<perm=[0,2,1,3,4]>(r)  z = Relu(t)  b = Reshape(z, back)",
        "r = Reshape(a, apart)  t = Transpose<perm=[0,2,1,4,3]>(r)  b = Reshape(t, back)",
        "r = Reshape(a, apart)  t = Transpose<perm=[0,1,2,4,3]>(r)  b = Reshape(t, back)",
        "r = Reshape(a, apart)  t = Transpose<perm=[0,2,1,3,4]>(r)  f = Reshape(t, flat)  b = Reshape(f, back)",
        "r = Reshape(a, apart)  t = Transpose<perm=[0,2,1,3,4]>(r)  e = Reshape(t, back)  z = Exp(r)  m = Reshape(z, back)  b = Add(e, m)",
        "r = Reshape(a, apart)  z = Transpose<perm=[0,2,1,3,4]>(r)  b = Reshape(r, back)",
    ],
)
def test_what_does_more_than_deal_channels_is_no_shuffle(nodes: str) -> None:
    from qdqtool.graph.channels.atoms import ChannelAtoms
    from qdqtool.pruning.shuffles import find_shuffles

    model = model_of(
        f"g (float[1,3,3,3] x) => (float[1,2,3,3] y) <float[8,3,1,1] w, float[2,8,1,1] u, int64[5] apart = {{1,2,4,3,3}}, int64[4] back = {{1,8,3,3}}, int64[2] flat = {{1,72}}> {{ a = Conv(x, w)  {nodes}  y = Conv(b, u) }}"
    )
    view = GraphView(model.graph)
    facts = look(ProbeRun(Model(model), [seeded_input(model.graph)]))
    assert find_shuffles(ChannelAtoms(view, facts.shapes, removal=True), view.nodes) == []


def test_a_shuffle_of_which_nothing_goes_stays() -> None:
    model = units(3)
    made = prune(model, options=PruneOptions(ratio=0.0)).model
    assert made.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
