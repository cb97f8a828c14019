# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which channels go: TAO's counts and defaults by hand, ratios, shares of the multiply-adds, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.pruning.choice import Criterion, choose, choose_evenly, kept_count, parse_criterion
from qdqtool.pruning.cut import Cut
from tests.graphs import model_of
from tests.pruning.nets import case, channels_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


@pytest.mark.parametrize(
    ("total", "wanted", "granularity", "least", "expected"),
    [
        (64, 33, 8, 16, 40),  # rounded up
        (64, 40, 8, 16, 40),
        (64, 3, 8, 16, 16),  # never below -nf
        (64, 3, 8, 12, 16),
        (20, 18, 8, 16, 20),  # never above what there is
        (12, 0, 8, 16, 12),
        (12, 0, 1, 1, 1),  # never none
        (7, 3, 1, 1, 3),
    ],
)
def test_taos_count(total: int, wanted: int, granularity: int, least: int, expected: int) -> None:
    assert kept_count(total, wanted, granularity, least) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Criterion(threshold=0.1, granularity=8, min_filters=16)),
        ({"threshold": 0.3}, Criterion(threshold=0.3, granularity=8, min_filters=16)),
        ({"threshold": 0.3, "granularity": 2, "min_filters": 1}, Criterion(threshold=0.3, granularity=2)),
        ({"ratio": 0.5}, Criterion(ratio=0.5)),
        ({"ratio": 0.5, "granularity": 32}, Criterion(ratio=0.5, granularity=32)),
        ({"macs": 0.5}, Criterion(macs=0.5)),
        ({"normalizer": "L2", "ratio": 0.1}, Criterion(ratio=0.1, normalizer="L2")),
    ],
)
def test_defaults_are_taos_with_a_threshold_alone(given: dict[str, Any], expected: Criterion) -> None:
    assert parse_criterion(**given) == expected


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"ratio": 0.5, "macs": 0.5}, "--ratio and --macs: exclude each other"),
        ({"ratio": 1.5}, "1.5 is not a share"),
        ({"threshold": -1.0}, "-1 is not a share"),
        ({"macs": 0.0}, "0 is not a share"),
        ({"granularity": 0}, "-pg: 0 is not a number of channels"),
        ({"min_filters": -3}, "-nf: -3 is not"),
        ({"normalizer": "l1"}, "-n: l1 is unknown"),
        ({"equalization": "sum"}, "-eq: sum is unknown"),
    ],
)
def test_what_is_out_of_range_is_refused(given: dict[str, Any], part: str) -> None:
    with pytest.raises(QdqError, match=part.replace("(", r"\(")):
        parse_criterion(**given)


def graded(count: int = 32) -> onnx.ModelProto:
    """A layer whose filters are worth 1/n, 2/n, ... 1."""
    model = model_of(
        f"g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[{count},1,1,1] w, float[1,{count},1,1] u> {{ a = Conv(x, w)  y = Conv(a, u) }}"
    )
    weight = (np.arange(1, count + 1) / count).reshape(count, 1, 1, 1).astype(np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    return model


@pytest.mark.parametrize(
    ("criterion", "kept"),
    [
        (parse_criterion(), 32),  # 29 are worth more than .1, which is 32 by eights
        (parse_criterion(threshold=0.3), 24),  # 23 are
        (parse_criterion(threshold=0.99), 16),
        (parse_criterion(threshold=0.3, granularity=1, min_filters=1), 23),
        (parse_criterion(ratio=0.5), 16),
        (parse_criterion(ratio=0.45), 18),  # no more than the share goes
        (parse_criterion(ratio=0.45, granularity=8), 24),
        (parse_criterion(ratio=1.0), 1),
        (parse_criterion(ratio=0.0), 32),
    ],
)
def test_the_least_go(criterion: Criterion, kept: int) -> None:
    channels = channels_of(graded())
    gone = choose(channels, criterion)
    assert sorted(gone.tolist()) == channels.groups[0].classes[: 32 - kept].tolist()


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3])
def test_a_share_of_the_multiply_adds_is_reached_and_not_by_far_undercut(share: float) -> None:
    channels = channels_of(graded())
    whole = Cut(channels, ()).multiply_adds()
    left = Cut(channels, choose(channels, parse_criterion(macs=share)).tolist()).multiply_adds()
    assert share - 1 / 32 <= left / whole <= share


def test_all_of_the_multiply_adds_is_nothing_to_do() -> None:
    assert choose(channels_of(graded()), parse_criterion(macs=1.0)).size == 0


def test_less_than_can_stay_is_refused() -> None:
    with pytest.raises(QdqError, match=r"--macs: 0.001 .* 0.03 "):
        choose(channels_of(graded()), parse_criterion(macs=0.001))


def test_equal_channels_go_from_the_end() -> None:
    model = case("chain with bias")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((8, 4, 1, 1), np.float32), "w"))
    channels = channels_of(model)
    assert choose(channels, parse_criterion(ratio=0.5)).tolist() == channels.groups[0].classes[4:].tolist()


def test_a_model_of_which_nothing_can_go_is_refused_with_the_reason() -> None:
    model = model_of("g (float[1,4,8,8] x) => (float[1,8,8,8] y) <float[8,4,1,1] w> { y = Conv(x, w) }")
    with pytest.raises(QdqError, match=r"y: .*an output"):
        choose(channels_of(model), parse_criterion(ratio=0.5))


TWO = "g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[8,1,1,1] w, float[8,8,1,1] v, float[1,8,1,1] u> { a = Conv(x, w)  b = Conv(a, v)  y = Conv(b, u) }"


@pytest.mark.parametrize(("share", "kept"), [(0.5, [2, 8]), (0.8, [4, 8])])
def test_gradients_leave_each_group_half_of_the_share_at_least(share: float, kept: list[int]) -> None:
    """All of a is worth less than any of b: it keeps as many of 8 as half of the share makes, not one."""
    channels = channels_of(model_of(TWO))
    measured = {group.name: np.full(8, worth) for group, worth in zip(channels.groups, (1e-3, 1.0), strict=True)}
    gone = choose(channels, parse_criterion(macs=share, importance="taylor"), measured)
    left = [8 - int(np.isin(group.classes, gone).sum()) for group in channels.groups]
    macs = Cut(channels, gone.tolist()).multiply_adds() / Cut(channels, ()).multiply_adds()
    assert macs <= share and left[0] >= np.ceil(8 * share / 2) and left == kept


def test_the_share_of_a_group_gives_way_where_the_multiply_adds_cannot_be_reached() -> None:
    """Six of eight multiply-adds are b's, whose eight channels must stay: a keeps one of its eight for .13."""
    text = "g (float[1,1,4,4] x) => (float[1,8,4,4] y) <float[8,1,1,1] w, float[8,8,1,1] v> { a = Conv(x, w)  y = Conv(a, v) }"
    channels = channels_of(model_of(text))
    gone = choose(channels, parse_criterion(macs=0.13, importance="taylor"), {"a": np.arange(1.0, 9)})
    assert len(gone) == 7
    with pytest.raises(QdqError, match="too little"):
        choose(channels, parse_criterion(macs=0.12, importance="taylor"), {"a": np.arange(1.0, 9)})


@pytest.mark.parametrize("share", [0.8, 0.5, 0.2])
def test_the_same_share_of_each_group_is_the_least_that_leaves_so_much(share: float) -> None:
    channels = channels_of(model_of(TWO))
    measured = {group.name: np.arange(1.0, 9) * worth for group, worth in zip(channels.groups, (1e-3, 1), strict=True)}
    gone = choose_evenly(channels, parse_criterion(macs=share), measured)
    assert gone is not None
    kept = [8 - int(np.isin(group.classes, gone).sum()) for group in channels.groups]
    whole = Cut(channels, ()).multiply_adds()
    assert kept[0] == kept[1] and Cut(channels, gone.tolist()).multiply_adds() <= share * whole
    count = 8 - kept[0]
    assert all(np.isin(group.classes[:count], gone).all() for group in channels.groups), "those worth least"
    more = [one for group in channels.groups for one in group.classes[: count - 1].tolist()]
    assert Cut(channels, more).multiply_adds() > share * whole


def test_no_share_of_each_group_leaves_next_to_nothing() -> None:
    assert choose_evenly(channels_of(graded()), parse_criterion(macs=0.001)) is None
