# SPDX-License-Identifier: Apache-2.0
"""What graft says of products without a scale, and takes from the file beside the cache."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from qdqtool.cache.sidecar import write_with_sidecar
from qdqtool.cache.text import format_cache
from qdqtool.match.plan import PlanOptions
from qdqtool.metadata import stored_table
from qdqtool.verbs.graft import graft
from qdqtool.verbs.graft_options import GraftOptions
from tests.graphs import model_of
from tests.verbs.test_graft import CHAIN, cache_of


@pytest.mark.parametrize("changed", [False, True], ids=["as it was described", "changed since"])
def test_the_preprocessing_beside_the_cache_goes_into_the_model(tmp_path: Path, changed: bool) -> None:
    """So that `evaluate` of the model needs no --preprocess; the cache must be the file that was described."""
    path, data = tmp_path / "c.cache", {"kind": "images", "name": "photos", "preprocess": "size=8x8,scale=1/255"}
    write_with_sidecar(path, format_cache(cache_of("x", "r")).encode(), {"verb": "ptq", "data": {**data, "batch": 2}})
    if changed:
        path.write_text(path.read_text() + "more: 3c010a14\n")
    onnx.save(model_of(CHAIN), tmp_path / "m.onnx")
    result = graft(tmp_path / "m.onnx", path)
    table = stored_table(onnx.load(result.model))
    assert table is not None and table.provenance.data == (None if changed else data)
    assert result.data is None


def test_products_without_a_scale_are_named_with_the_tensor_that_lacks_one() -> None:
    chain = " ".join(f"r{n} = Conv(r{n - 1}, w)" for n in range(1, 14)).replace("(r0,", "(x,")
    model = model_of(f"g (float[1,4,8,8] x) => (float[1,4,8,8] r13) <float[4,4,1,1] w> {{ {chain} }}")
    result = graft(model, cache_of("x", *(f"r{n}" for n in range(2, 13))))
    assert result.starved == {"Conv r2": ("r1",)}
    assert re.match(r"1 product builds in float, .*no scale .*: Conv r2 \(reads r1\)$", "".join(result.warnings))
    (many,) = graft(model, cache_of("x")).warnings
    assert re.match(r"12 products build in float, .*no scale .*: Conv r2 \(reads r1\), ", many)
    assert many.endswith("Conv r11 (reads r10) and 2 more")
    assert graft(model, cache_of("x", *(f"r{n}" for n in range(1, 14)))).warnings == ()


def test_a_product_that_the_rules_leave_in_float_is_named_though_the_cache_has_scales() -> None:
    text = """g (float[1,2,8,8] q, float[1,2,8,8] k, float[1,2,8,8] v) => (float[1,2,8,8] z) <float[8,8] w>
     { a = MatMul(q, w) s = MatMul(a, k) p = Softmax(s) m = MatMul(p, v) z = Relu(m) }"""
    names = [*"qaksvpmz"]
    said = "2 products stay in float though the cache has scales, as the rules have it: MatMul s, MatMul m (heads of 8"
    assert any(note.startswith(said) for note in graft(model_of(text), cache_of(*names)).notes)
    lacking = graft(model_of(text), cache_of(*(name for name in names if name not in "sv"))).notes
    assert any(re.match("1 product stays in float.*: MatMul s$", note) for note in lacking)


def test_a_head_that_is_kept_in_float_is_not_named() -> None:
    options = GraftOptions(PlanOptions(keep_float=("second",), float_heads="none"))
    assert not any("in float though" in note for note in graft(model_of(CHAIN), cache_of("x", "r"), options).notes)
