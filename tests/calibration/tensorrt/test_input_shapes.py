# SPDX-License-Identifier: Apache-2.0
"""`--shapes`: what it reads, which inputs it fixes, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.calibration.tensorrt.input_shapes import fix_inputs, parse_shapes, require_fixed
from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError

X = Input("x", ("N", 3, None, None), np.dtype(np.float32))
AT = Input("at", (4,), np.dtype(np.int64))
ANY = Input("any", None, np.dtype(np.float32))
SCALAR = Input("s", (), np.dtype(np.float32))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("x:1x3x8x8", {"x": (1, 3, 8, 8)}),
        ("x:1x3x8x8, at:4", {"x": (1, 3, 8, 8), "at": (4,)}),
        ("serving_default:0:2x4", {"serving_default:0": (2, 4)}),
        ("a/b.c:7", {"a/b.c": (7,)}),
    ],
)
def test_shapes_are_read_as_trtexec_spells_them(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize(
    "text", ["", "x", "x:", ":1x2", "x:1x", "x:0x3", "x:1x-3", "x:1,x:2", "x=1x2", "x:1x²", "x:9999999999"]
)
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(QdqError, match="--shapes") as caught:
        parse_shapes(text)
    assert "\n" not in caught.value.line()


def test_named_inputs_are_fixed_and_the_others_stay() -> None:
    fixed = fix_inputs([X, AT, ANY], {"x": (1, 3, 8, 8), "any": (5,)})
    assert [one.shape for one in fixed] == [(1, 3, 8, 8), (4,), (5,)]
    assert [one.dtype for one in fixed] == [one.dtype for one in (X, AT, ANY)]
    assert fix_inputs([X, AT], {}) == (X, AT)


@pytest.mark.parametrize(
    ("shapes", "part"),
    [({"x": (1, 4, 8, 8)}, "takes .N, 3"), ({"x": (1, 3, 8)}, "not 1x3x8"), ({"y": (1,)}, "not an input of the model")],
)
def test_what_the_model_does_not_take_is_refused(shapes: dict[str, tuple[int, ...]], part: str) -> None:
    with pytest.raises(QdqError, match=part):
        fix_inputs([X, AT], shapes)


def test_every_input_must_be_fixed() -> None:
    assert require_fixed([AT, SCALAR]) == {"at": (4,), "s": ()}
    with pytest.raises(QdqError, match=r"--shapes x:1x3x1x1"):
        require_fixed([AT, X])
    with pytest.raises(QdqError, match=r"any: .*any shape"):
        require_fixed([ANY])
