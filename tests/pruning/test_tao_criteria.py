# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""TAO's pruning by the table of docs/prune.md, a row at a time: small weights, and by hand which filters stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import PruneOptions, prune
from qdqtool.errors import QdqError
from tests.graphs import model_of
from tests.pruning.nets import value, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

# One input channel, n filters of one weight each, one output: the norm of a filter is its weight's size.
CHAIN = "g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[%d,1,1,1] w, float[%d] b, float[1,%d,1,1] u> { a = Conv(x, w, b)  y = Conv(a, u) }"
# Two layers that are added, and so have one mask.
ADDED = "g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[4,1,1,1] w, float[4,1,1,1] v, float[1,4,1,1] u> { a = Conv(x, w)  b = Conv(x, v)  c = Add(a, b)  y = Conv(c, u) }"
DEPTHWISE = "g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[4,1,1,1] w, float[4,1,1,1] d, float[1,4,1,1] u> { a = Conv(x, w)  b = Conv<group=4>(a, d)  y = Conv(b, u) }"
FREE = {"granularity": 1, "min_filters": 1}


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32).reshape(-1, 1, 1, 1)


def chain(*norms: float, bias: float = 0.0) -> onnx.ModelProto:
    count = len(norms)
    return with_values(model_of(CHAIN % (count, count, count)), w=column(*norms), b=np.full(count, bias))


def left(model: onnx.ModelProto, name: str = "w", **options: Any) -> list[float]:
    """The filters of a layer that stay."""
    kept = value(prune(model, options=PruneOptions(**options)).model, name).reshape(-1)
    return [round(float(one), 4) for one in kept]


def test_pth_keeps_what_is_worth_more_than_it() -> None:
    """Norms 1, 2, 5, 10 divided by 10 are .1, .2, .5, 1: with .2 the last two are more, with .1 the last three."""
    assert left(chain(1, 2, 5, 10), threshold=0.2, **FREE) == [5, 10]
    assert left(chain(1, 2, 5, 10), threshold=0.1, **FREE) == [2, 5, 10]


def test_pth_is_a_tenth_by_default() -> None:
    assert left(chain(*[0.05] * 8, *[0.5] * 23, 1)) == [0.5] * 23 + [1]


def test_n_max_divides_by_the_largest_and_l2_by_the_norm_of_all() -> None:
    """3 and 4 are .75 and 1 by the largest, .6 and .8 by their norm 5."""
    assert left(chain(3, 4), threshold=0.7, normalizer="max", **FREE) == [3, 4]
    assert left(chain(3, 4), threshold=0.7, normalizer="L2", **FREE) == [4]


def test_a_bias_is_left_aside() -> None:
    assert left(chain(1, 10, bias=1000), threshold=0.5, **FREE) == [10]


def test_the_norm_is_that_of_all_weights_of_a_filter() -> None:
    """(3, 4) and (0, 6) have the norms 5 and 6; their largest weights would say 4 and 6."""
    text = "g (float[1,2,2,2] x) => (float[1,1,2,2] y) <float[2,2,1,1] w, float[1,2,1,1] u> { a = Conv(x, w)  y = Conv(a, u) }"
    model = with_values(model_of(text), w=np.array([3, 4, 0, 6]).reshape(2, 2, 1, 1))
    assert left(model, threshold=0.8, **FREE) == [3, 4, 0, 6], "5 / 6 is more than .8"
    assert left(model, threshold=0.84, **FREE) == [0, 6]


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ("union", [1, 4, 8]),  # the larger ones are 1, .125, .5, 1
        ("intersection", [8]),  # the lesser ones .125, 0, .125, 1
        ("arithmetic_mean", [1, 8]),  # .5625, .0625, .3125, 1
        ("geometric_mean", [1, 8]),  # .354, 0, .25, 1
    ],
)
def test_eq_puts_layers_that_are_added_together(how: str, kept: list[float]) -> None:
    """Norms by their largest: .125, .125, .5, 1 and 1, 0, .125, 1; more than .33 stays."""
    model = with_values(model_of(ADDED), w=column(1, 1, 4, 8), v=column(8, 0, 1, 8))
    assert left(model, threshold=0.33, equalization=how, **FREE) == kept


def test_a_depthwise_layer_is_equalized_with_what_it_reads() -> None:
    """.25, .5, .75, 1 and 1, 0, 0, 0: by union the first stays for its depthwise filter."""
    model = with_values(model_of(DEPTHWISE), w=column(1, 2, 3, 4), d=column(4, 0, 0, 0))
    assert left(model, threshold=0.6, **FREE) == [1, 3, 4]
    assert left(model, "d", threshold=0.6, **FREE) == [4, 0, 0]


def test_pg_rounds_up_and_nf_is_the_least() -> None:
    norms = [0.1] * 20 + [1.0] * 12  # 12 are worth more than a half
    assert len(left(chain(*norms), threshold=0.5)) == 16, "-nf 16"
    assert len(left(chain(*norms), threshold=0.5, min_filters=1)) == 16, "-pg 8: 12 becomes 16"
    assert len(left(chain(*norms), threshold=0.5, granularity=5, min_filters=1)) == 15
    assert len(left(chain(*norms), threshold=0.5, granularity=1, min_filters=14)) == 14
    assert len(left(chain(*norms), threshold=0.5, granularity=24, min_filters=30)) == 32, "never more than there is"


def test_a_layer_of_no_more_than_nf_filters_stays_whole() -> None:
    model = chain(*[0.01] * 15, 1.0)
    assert prune(model).model.SerializeToString() == model.SerializeToString()


def test_el_leaves_a_layer_whole_and_all_that_goes_with_it() -> None:
    model = with_values(model_of(ADDED), w=column(1, 1, 1, 8), v=column(1, 1, 1, 8))
    with pytest.raises(QdqError, match="no channel "):
        prune(model, options=PruneOptions(threshold=0.5, exclude=("^b$",), **FREE))


def test_the_best_filters_stay_and_their_order_with_them() -> None:
    assert left(chain(9, 1, 8, 2, 10), threshold=0.5, **FREE) == [9, 8, 10]


def test_the_pruning_ratio_is_that_of_parameters() -> None:
    """4 weights, 4 biases and 4 read; half of each stays."""
    result = prune(chain(1, 2, 8, 10), options=PruneOptions(threshold=0.5, **FREE))
    assert result.done.parameters == (12, 6) and "pruning ratio 0.500 (pruned / original parameters)" in repr(result)
