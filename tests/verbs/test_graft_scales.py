# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Scales that come back by peel as the cache had them: of a published pair, on both sides of a pool, and of second pairs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cache.other_export import shifted_names
from qdqtool.cache.sanitize import renamed
from qdqtool.cache.text import Cache, read_cache
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.graft import graft
from qdqtool.verbs.graft_options import GraftOptions
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from tests.graphs import model_of
from tests.ort_session import session_of
from tests.verbs.graft_nets import UPSAMPLED, V8_6, activations, all_names, cache_of, entries, with_version

# ---------------------------------------------------------------------- a published pair


@pytest.mark.shared
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_published_cache_into_its_model(shared: Path, tmp_path: Path, everywhere: bool) -> None:
    """Written by TensorRT 8.0.1, whose parser named its own layers: what is unknown is theirs or lost to its folding."""
    folder = shared / "trt" / "pairs" / "lannyyip_share"
    source, cache = onnx.load(folder / "model.onnx"), read_cache(folder / "calibration.cache")
    options = GraftOptions(everywhere=everywhere, force=True)
    result = graft(folder / "model.onnx", cache, options, output=tmp_path / "q.onnx")
    names = {*all_names(source), *(t.name for t in source.graph.initializer)}
    assert {*result.unknown, *result.made_up} == set(cache.entries) - names
    assert result.made_up and not set(result.unknown) & set(result.made_up)
    second = {point.tensor for point in result.plan.activations if point.repeats} | result.lent.keys()
    placed = {name: bits for name, bits in activations(onnx.load(tmp_path / "q.onnx")).items() if name not in second}
    assert placed == {name: cache.entries[name].tobytes() for name in placed}
    counts = (len(cache.entries), len(placed), *map(len, (result.unplaced, result.unknown, result.made_up)))
    assert sum(counts[1:]) + len(set(result.lent.values()) - placed.keys()) == counts[0]
    assert len(placed) > (30 if everywhere else 5)
    kinds = Counter(reason.split(" of ")[0] for reason in result.unplaced.values())
    constants = {t.name for t in source.graph.initializer} | {
        n.output[0] for n in source.graph.node if n.op_type == "Constant"
    }
    assert kinds["a constant"] >= len(set(cache.entries) & constants) > 0
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    session = session_of(tmp_path / "q.onnx")
    assert [o.name for o in session.get_outputs()] == [o.name for o in source.graph.output]
    back = peel(tmp_path / "q.onnx", PeelOptions(TrtVersion(8, 0, 1), source=folder / "model.onnx"), output=tmp_path / "p.onnx", cache=tmp_path / "p.cache")  # fmt: skip
    assert (tmp_path / "p.onnx").read_bytes() == (folder / "model.onnx").read_bytes()
    assert all(back.cache.entries[name].tobytes() == bits for name, bits in placed.items())


# ---------------------------------------------------------------------- the way back

POOLED = """g (float[1,4,8,8] x) => (float[1,4,4,4] z) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w3> { c = Conv(x, w1) r = Relu(c) m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
 d = Conv(m, w2) e = Relu(d) k = Concat<axis=1>(e, m) z = Conv(k, w3) }"""


@pytest.mark.parametrize("version", ["8601", "11.4.1"])
def test_peel_gives_back_the_cache_s_scale_on_both_sides_of_a_pool_and_a_concat(version: str) -> None:
    model, cache = model_of(POOLED), cache_of("x", "c", "r", "m", "d", "e", "k", "z")
    made = graft(model, cache, GraftOptions(with_version(version))).model
    back = peel(made, PeelOptions(V8_6)).cache.entries
    assert {name: bits.tobytes() for name, bits in back.items()} == {
        name: cache.entries[name].tobytes() for name in back
    }
    assert {"x", "r", "m", "e", "k"} <= set(back)


def test_a_point_that_was_trained_since_gives_its_own_scale() -> None:
    made = graft(model_of(POOLED), cache_of("x", "c", "r", "m", "d", "e", "k", "z"), GraftOptions(with_version("8601"))).model  # fmt: skip
    view = GraphView(made.graph)
    placed = {name: pairs[0].quantize.inputs[1] for name, pairs in view.pairs.items() if name in ("r", "m")}
    ((point, stored),) = placed.items()
    other = next(name for name in ("r", "m") if name != point)
    for tensor in made.graph.initializer:
        if tensor.name == stored:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(5), stored))
    back = peel(made, PeelOptions(V8_6)).cache.entries
    assert back[point] == back[other] == np.float32(5)


@pytest.mark.shared
def test_the_published_pair_there_and_back_changes_no_scale(shared: Path) -> None:
    folder = shared / "trt" / "pairs" / "lannyyip_share"
    given = read_cache(folder / "calibration.cache")
    cache = renamed(given, shifted_names(given, -8))
    for version in ("8.0.1", "11.4.1"):
        result = graft(onnx.load(folder / "model.onnx"), cache, GraftOptions(with_version(version)))
        back = peel(result.model, PeelOptions(TrtVersion(8, 0, 1)))
        changed = [name for name, bits in back.cache.entries.items() if bits.tobytes() != cache.entries[name].tobytes()]
        assert changed == [] and {"100", "108", "128", "186", "187"} & set(back.cache.entries)
        assert len(back.cache.entries) == 33


def test_a_point_that_the_cache_lacks_takes_the_scale_of_the_same_values() -> None:
    """The cache has what the pool reads, the pair stands after the pool."""
    cache = cache_of("x", "r", "e", "k")
    result = graft(model_of(POOLED), cache, GraftOptions(with_version("8601")))
    assert result.lent == {"m": "r"}
    assert activations(result.model)["m"] == cache.entries["r"].tobytes()
    assert re.search(r" 1 of them .*\(m from r\)", result.summary()[0])
    assert "r" not in result.unplaced


# ---------------------------------------------------------------------- TensorRT 11: second pairs


def test_tensorrt_11_gets_a_second_pair_with_the_scale_of_the_cache() -> None:
    """Without it the product after the Resize is built in float; Q020 leaves what the cache says at the Concat."""
    model = model_of(UPSAMPLED)
    scales = entries("x", "c", "r", "u", "s", "k", "z")
    cache = Cache.of(V8_6, {**scales, "s": scales["r"]})  # else older versions get one, too: after the Concat
    old, new = (graft(model, cache, GraftOptions(PlanOptions(trt_version=v, float_heads="none"), rest="fp32")) for v in ("8601", "11.4.1"))  # fmt: skip
    assert set(activations(old.model)) == {"x", "r", "s"}
    placed = activations(new.model)
    assert placed == {name: cache.entries[name].tobytes() for name in ("x", "r", "s", "k")}
    for made in (old, new):
        found = lint(made.model, LintOptions(trt_version="11.4.1", select=("Q020", "Q035"), parser=False)).findings
        assert [one.code for one in found if one.code == "Q035"] == (["Q035"] if made is old else [])
        assert not any(one.fixable for one in found)
    assert not any("build in float" in note for note in new.notes)


def test_a_second_pair_that_the_cache_lacks_has_the_scale_before_it() -> None:
    cache = cache_of("x", "r", "s")
    placed = activations(graft(model_of(UPSAMPLED), cache, GraftOptions(with_version("11.4.1"), rest="fp32")).model)
    assert placed["k"] == max(cache.entries[name] for name in "rs").tobytes()


JOINED = """g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w3>
 { a = Conv(x, w1) b = Conv(x, w2) k = Concat<axis=1>(a, b) z = Conv(k, w3) }"""


@pytest.mark.parametrize("version", ["8601", "10.3.0", "11.4.1"])
def test_behind_a_concat_of_several_scales_stands_the_scale_that_the_cache_has_for_it(version: str) -> None:
    """As TensorRT does with that cache: it requantizes each input, and the product reads one scale."""
    result = graft(model_of(JOINED), cache_of("x", "a", "b", "k"), GraftOptions(with_version(version), rest="fp32"))
    assert activations(result.model) == {name: bits.tobytes() for name, bits in entries("x", "a", "b", "k").items()}
    assert not result.unplaced


def test_behind_a_concat_that_the_cache_lacks_stands_the_largest_scale_before_it() -> None:
    scales = entries("x", "a", "b")
    placed = activations(graft(model_of(JOINED), Cache.of(V8_6, scales)).model)
    assert placed["k"] == max(scales["a"], scales["b"]).tobytes() and placed["a"] != placed["b"]


def test_behind_a_concat_of_one_scale_stands_no_pair() -> None:
    """Whatever the cache says of the Concat: values of one scale are read with it."""
    scales = entries("x", "a", "k")
    assert set(activations(graft(model_of(JOINED), Cache.of(V8_6, {**scales, "b": scales["a"]})).model)) == set("xab")


def test_a_pair_behind_the_inner_concat_counts_as_the_one_scale_of_what_it_joins() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] z, float[1,4,8,8] y)
     <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w3, float[4,12,1,1] w4>
     { a = Conv(x, w1) b = Conv(x, w2) k = Concat<axis=1>(a, b) z = Conv(k, w3) l = Concat<axis=1>(k, a) y = Conv(l, w4) }"""
    cache = cache_of("x", "a", "b", "k", "l")
    assert activations(graft(model_of(text), cache).model) == {n: cache.entries[n].tobytes() for n in cache.entries}


def test_a_cache_whose_names_are_shifted_is_refused_with_the_command_that_renames_them(tmp_path: Path) -> None:
    """Some of its names fit as they are, on other tensors: their scales would be placed without a word."""
    steps = " ".join(f"n{n} = Conv({'x' if n == 10 else f'n{n - 1}'}, w)" for n in range(10, 26))
    model = model_of(f"g (float[1,4,8,8] x) => (float[1,4,8,8] n25) <float[4,4,1,1] w> {{ {steps} }}")
    for one in (*model.graph.node, *model.graph.output):  # text has no names of digits
        for field in ("input", "output") if isinstance(one, onnx.NodeProto) else ():
            getattr(one, field)[:] = [name.removeprefix("n") for name in getattr(one, field)]
        one.name = one.name.removeprefix("n")
    names = [str(number) for number in range(16, 32)]
    cache = cache_of("x", *names)
    with pytest.raises(QdqError, match=r"minus 6 fit 16 of 16, as they are 10; .*--shift-names -6 .*--force takes it"):
        graft(model, cache)
    forced = graft(model, cache, GraftOptions(force=True))
    assert any("another export" in note for note in forced.notes)
    renamed = Cache.of(V8_6, {shifted_names(cache, -6).get(name, name): bits for name, bits in cache.entries.items()})
    assert not graft(model, renamed).unknown


def test_products_that_build_in_float_are_told() -> None:
    """A MatMul of two computed tensors, of which the cache has one."""
    text = "g (float[1,4,4] a, float[1,4,4] b, float[1,4,4] c) => (float[1,4,4] z) <float[4,4] w> { m = MatMul(a, b) n = MatMul(c, w) p = Add(m, n) z = Relu(p) }"
    result = graft(
        model_of(text), cache_of("a", "c"), GraftOptions(with_version("11.4.1"), everywhere=True, rest="fp32")
    )
    assert any(re.match(r"1 product .*, such as m \(Q038", note) for note in result.notes)
