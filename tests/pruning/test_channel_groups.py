# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which channels go together, and which stay and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.pruning.choice import parse_criterion, with_one_left
from qdqtool.pruning.kept_channels import kept_of
from qdqtool.pruning.probe import ProbeRun
from qdqtool.pruning.run import prune_model
from tests.graphs import model_of
from tests.pruning.nets import ATTENTION, case, channels_of, shapes, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("chain with bias", {"a": 8}),
        ("residual add", {"a": 8}),
        ("concat", {"a": 8, "b": 8}),
        ("split with sizes", {"a": 3, "a#2": 5}),
        ("channel shuffle", {"a": 4}),
        ("grouped", {"a": 4, "b": 4}),
        ("depthwise with a multiplier", {"a": 8}),
        ("squeeze and excite", {"a": 8, "q": 4}),
        ("depth to space", {"a": 2}),
        ("flatten to gemm", {"a": 8}),
    ],
)
def test_groups_and_how_many_channels_they_have(name: str, groups: dict[str, int]) -> None:
    assert {group.name: len(group.classes) for group in channels_of(case(name)).groups} == groups


def test_heads_are_one_channel_each() -> None:
    assert {group.name: len(group.classes) for group in channels_of(model_of(ATTENTION)).groups} == {"q0": 2, "h0": 16}


@pytest.mark.parametrize(
    ("nodes", "operator", "reason"),
    [
        ("a = Conv(x, w)  y = Relu(a)", "a", "y is an output of the model"),
        ("a = Conv(x, w)  b = Softmax<axis=1>(a)  y = Conv(b, u)", "a", "Softmax b needs all of them"),
        ("a = Conv(x, w)  b = ReduceMean<axes=[1]>(a)  y = Conv(b, one)", "a", "ReduceMean b needs all of them"),
        ("a = Conv(x, w)  b = Slice(a, at, to, on, by)  y = Conv(b, half)", "a", "Slice b takes every n-th of them"),
        (
            "a = Conv(x, eight)  b = Add(a, x)  y = Conv(b, four)",
            "a",
            "it must stay together with channels that cannot be removed",
        ),
    ],
)
def test_what_must_stay_says_why(nodes: str, operator: str, reason: str) -> None:
    text = f"""g (float[1,4,8,8] x) => (float[A,B,C,D] y) <float[8,4,1,1] w, float[6,8,1,1] u, float[6,1,1,1] one, float[6,4,1,1] half, float[4,4,1,1] eight, float[6,4,1,1] four,
int64[1] at = {{0}}, int64[1] to = {{8}}, int64[1] on = {{1}}, int64[1] by = {{2}}> {{ {nodes} }}"""
    assert channels_of(model_of(text)).pinned[operator] == reason


def test_what_a_channel_by_itself_is_read_for_stays() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,6,8,8] y, float[1,8,8] z) <float[8,4,1,1] w, float[6,8,1,1] u, int64 third = {3}> { a = Conv(x, w)  y = Conv(a, u)  b = Gather<axis=1>(a, third)  z = Relu(b) }"
    channels = channels_of(model_of(text))
    assert [len(group.classes) for group in channels.groups] == [7]
    assert (channels.prunable, channels.channels) == (7, 14)


def test_how_much_can_go() -> None:
    channels = channels_of(case("squeeze and excite"))
    assert (channels.prunable, channels.channels) == (8 + 4 + 8, 8 + 4 + 8 + 6)


@pytest.mark.parametrize("pattern", ["^a$", "a"])
def test_what_is_excluded_keeps_its_channels_with_all_that_go_with_it(pattern: str) -> None:
    channels = channels_of(case("residual add"), pattern)
    assert not channels.groups and channels.pinned["b"] == f"--exclude {pattern}"


@pytest.mark.parametrize(
    ("pattern", "part"), [("nowhere", "nowhere matches no operator or tensor"), ("(", "not a regular expression")]
)
def test_an_expression_that_fits_nothing_is_refused(pattern: str, part: str) -> None:
    with pytest.raises(QdqError, match=part):
        channels_of(case("residual add"), pattern)


OVERLAP = """g (float[1,4,8,8] x) => (float[1,5,8,8] y)
 <float[8,4,1,1] w, float[5,4,1,1] k, float[5,5,1,1] l, int64[1] zero = {0}, int64[1] three = {3}, int64[1] four = {4}, int64[1] eight = {8}, int64[1] one = {1}>
 { a = Conv(x, w)  b = Slice(a, zero, four, one)  c = Slice(a, three, eight, one)  d = Conv(b, k)  e = Conv(c, l)  y = Add(d, e) }"""


def test_a_channel_alone_on_its_axes_goes_with_those_of_its_layer() -> None:
    """Channel 3 alone is read by both: it can go, with the channels of the first reader as its group."""
    channels = channels_of(model_of(OVERLAP))
    assert [len(group.classes) for group in channels.groups] == [4, 4] and channels.prunable == 8
    assert {axis.use.node.name for axis in channels.groups[0].axes} == {"a", "d", "e"}
    model = with_values(
        model_of(OVERLAP), w=np.arange(32).reshape(8, 4, 1, 1) + np.where(np.arange(8) == 3, -14, 0).reshape(8, 1, 1, 1)
    )
    made = prune_model(ProbeRun(Model(model), []), parse_criterion(ratio=0.25), ()).model
    kept = shapes(made)
    assert kept["w"] == (6, 4, 1, 1) and 3 not in kept_of(made)["a"].places
    assert (kept["k"], kept["l"]) == ((5, 3, 1, 1), (5, 3, 1, 1)), "both readers lose it, and the second one more"


def test_the_best_channel_of_a_tensor_stays_where_all_could_go() -> None:
    channels = channels_of(model_of(OVERLAP))
    first, second = (group.classes.tolist() for group in channels.groups)
    worth = {one: float(place) for place, one in enumerate([*first, *second])}
    held = replace(channels, alone=((first[1], first[2]), (second[0], second[1])))
    assert with_one_left(held, first[:3], worth).tolist() == sorted([first[0], first[1]])
    assert with_one_left(held, [], worth).size == 0
