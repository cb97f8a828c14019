# SPDX-License-Identifier: Apache-2.0

"""The float type of what graft leaves out of INT8: who chooses it, and by what."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.cache.text import Cache
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.verbs.amp import plan_types
from qdqtool.verbs.amp_options import AmpOptions
from qdqtool.verbs.graft import graft
from qdqtool.verbs.graft_options import GraftOptions, GraftResult
from tests.graphs import model_of
from tests.verbs.graft_nets import CHAIN, UPSAMPLED, V8_6, cache_of, entries, with_version


def with_rest(rest: str | None, version: str | None = None, **more: object) -> GraftResult[onnx.ModelProto]:
    plan = PlanOptions(float_heads="none", trt_version=version)
    model = model_of(CHAIN.replace("z = Conv(r, w2)", "d = Conv(r, w2) z = ConvTranspose(d, w2)"))
    return graft(model, cache_of("x", "r", "c", "d", "z"), GraftOptions(plan, rest=rest), **more)  # type: ignore[arg-type]


def test_an_engine_that_would_be_mostly_fp32_is_told_of() -> None:
    """One scale of the cache is for this model: nothing is known of the other tensors' values without data."""
    body = "a = Conv(x, w) b = Sigmoid(a) c = Mul(a, b) d = Conv(c, w) e = Conv(d, w) f = Sigmoid(e) z = Mul(e, f)"
    model = model_of(f"g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w> {{ {body} }}")
    few, full = (graft(model, cache_of(*names), GraftOptions(with_version("11.4.1"))) for names in ("d", "xabcdefz"))
    (line,) = (line for line in few.summary() if "mostly FP32" in line)
    assert "2 of 3 convolutions" in line and "--data" in line
    assert not any("mostly FP32" in line for line in full.summary())
    data = [{"x": np.ones((1, 4, 8, 8), np.float32)}]
    assert not any(
        "mostly" in line
        for line in graft(model, cache_of("d"), GraftOptions(with_version("11.4.1")), data=data).summary()
    )


@pytest.mark.parametrize(
    ("rest", "version", "kind"),
    [
        (None, None, 0),
        (None, "8601", 0),
        (None, "11.1.0", 10),
        ("fp32", "11.1.0", 0),
        ("fp16", None, 10),
        ("bf16", "11.1.0", 16),
    ],
)
def test_the_version_or_the_user_says_the_float_type(rest: str | None, version: str | None, kind: int) -> None:
    done = with_rest(rest, version)
    casts = {item.i for node in done.model.graph.node if node.op_type == "Cast" for item in node.attribute} - {1}
    assert casts == ({kind} if kind else set())
    assert (done.rest is not None) is bool(kind)


def test_scales_are_the_cache_s_with_either_type() -> None:
    full, half = with_rest("fp32").model, with_rest("fp16").model
    stored = [{t.name: t.raw_data for t in one.graph.initializer if t.name.endswith("_scale")} for one in (full, half)]
    assert stored[0] == stored[1]


def test_data_that_nothing_asks_for_are_refused() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    data = np.random.default_rng(0).normal(size=(3, 4, 8, 8)).astype(np.float32)
    assert with_rest("fp16", data=data).rest is not None
    with pytest.raises(QdqError, match=r"--data: has no effect.*--rest fp16"):
        with_rest("fp32", data=data)


def test_a_tensor_that_the_cache_shows_beyond_fp16_stays_fp32() -> None:
    plan = PlanOptions(float_heads="none")
    cache = Cache.of(V8_6, {**entries("x", "r", "c"), "c": np.float32(1e4)})  # 1.27 million
    done = graft(model_of(CHAIN), cache, GraftOptions(plan, rest="fp16"))
    assert done.rest is not None
    assert "c" in done.rest.assignment.float32


def test_versions_before_10_and_typed_models_are_refused() -> None:
    with pytest.raises(QdqError, match=r"--rest fp16: TensorRT 8\.6\.1 "):
        with_rest("fp16", "8601")
    half = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float16[1,4] x) => (float16[1,4] y) { y = Relu(x) }'
    )
    with pytest.raises(QdqError, match=r"has FP16 or BF16 tensors.*--rest"):
        graft(half, cache_of("x"), GraftOptions(rest="fp16"))


def test_amp_counts_the_types_of_a_grafted_model_as_graft_does() -> None:
    """What is FP32 in the file and inside of INT8 layers is no operator in FP32."""
    result = graft(
        model_of(UPSAMPLED), cache_of("x", "c", "r", "u", "s", "k", "z"), GraftOptions(with_version("11.4.1"))
    )
    again = plan_types(result.model, options=AmpOptions(assume_range=10.0))
    assert result.rest is not None and result.rest.choice.int8 > 0
    assert again.choice.headline() == result.rest.choice.headline()
