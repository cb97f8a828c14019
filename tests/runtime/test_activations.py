# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Activations as onnxruntime gives them, against the reference evaluator; what is left out, what is refused."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.runtime.activations import ObservableModel, OrtActivations, with_known_numbers
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


from qdqtool.runtime.installed import _sole_flavor, one_line
from tests.ort_session import session_of

NUMBERS = "int64[1] k0 = {0}, int64[1] k2 = {2}, int64[1] rest = {-1}"
SIZES = "s = Shape(x) n = Gather<axis=0>(s, k0) two = Constant<value = int64[1] {2}>() h = Div(n, two) t = Concat<axis=0>(h, k2, rest)"
NET = f"g (float[4,6] x) => (float[A,B,C] y) <{NUMBERS}> {{ {SIZES} r = Reshape(x, t) y = Relu(r) }}"
HEAD = '<ir_version: {ir}, opset_import: ["" : 13, "my" : 1]>\n'


def model(text: str, ir: int = 8) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD.format(ir=ir) + text)


def observed(proto: onnx.ModelProto, batch: dict[str, Any], **options: Any) -> dict[str, npt.NDArray[np.float32]]:
    return dict(OrtActivations(Model(proto), **options).run(batch))


def weights(proto: onnx.ModelProto, **arrays: npt.NDArray[Any]) -> onnx.ModelProto:
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return proto


CHAIN = """g (float[N, 3, 8, 8] x) => (float[N, 4] y) {
    c = Conv <kernel_shape = [3, 3]> (x, w, b)
    r = Relu(c)
    m = ReduceMean <axes = [2, 3], keepdims = 0> (r)
    s = Shape(m)
    y = Reshape(m, s)
}"""


def chain(ir: int = 8) -> onnx.ModelProto:
    r = np.random.default_rng(0)
    w, b = r.normal(size=(4, 3, 3, 3)).astype(np.float32), r.normal(size=4).astype(np.float32)
    return weights(model(CHAIN, ir), w=w, b=b)


def batch(count: int = 2) -> dict[str, npt.NDArray[np.float32]]:
    return {"x": np.random.default_rng(1).normal(size=(count, 3, 8, 8)).astype(np.float32)}


def test_every_float_tensor_in_graph_order_with_the_right_values() -> None:
    proto, feeds = chain(), batch()
    activations = OrtActivations(Model(proto))
    assert activations.names == ("x", "c", "r", "m", "y")  # not s, which is int64, not w and b
    got = dict(activations.run(feeds))
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("c", "r", "m"))
    want = dict(zip([o.name for o in whole.graph.output], ReferenceEvaluator(whole).run(None, feeds), strict=True))
    assert got["x"].tobytes() == feeds["x"].tobytes()
    for name, array in want.items():
        assert got[name].dtype == np.float32
        assert np.allclose(got[name], array, rtol=1e-5, atol=1e-5)  # other order of summation


def test_the_model_is_not_changed() -> None:
    proto = chain()
    before = proto.SerializeToString(deterministic=True)
    observed(proto, batch())
    assert proto.SerializeToString(deterministic=True) == before


def test_wanted_only() -> None:
    assert OrtActivations(Model(chain()), ["r", "x"]).names == ("x", "r")
    assert OrtActivations(Model(chain()), ["x"]).names == ("x",)
    with pytest.raises(QdqError, match=r"^nonsense: .*main graph"):
        OrtActivations(Model(chain()), ["nonsense"])
    with pytest.raises(QdqError, match="no float32 activation"):
        OrtActivations(Model(chain()), ["s"])


@pytest.mark.parametrize("ir", [3, 8])
def test_initializers_listed_as_inputs_need_no_data(ir: int) -> None:
    proto = chain(ir)
    for tensor in proto.graph.initializer:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    got, want = observed(proto, batch()), observed(chain(), batch())
    assert {name: array.tobytes() for name, array in got.items()} == {n: a.tobytes() for n, a in want.items()}


def test_constants_are_no_activations() -> None:
    proto = model("""g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        k = Constant <value = float[2] {3, 4}> ()
        moved = Identity(w)
        a = Add(x, k)
        y = Mul(a, moved)
    }""")
    assert OrtActivations(Model(proto)).names == ("x", "a", "y")


def test_tensors_inside_bodies_are_not_observed() -> None:
    proto = model("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] a) { a = Neg(x) },
            else_branch = e () => (float[2] b) { b = Abs(x) }
        >
    }""")
    got = observed(proto, {"x": np.array([1, -2], np.float32), "c": np.array(True)})
    assert list(got) == ["x", "y"]
    assert got["y"].tolist() == [-1, 2]


def test_names_of_nodes_may_repeat() -> None:
    proto = chain()
    for node in proto.graph.node:
        node.name = "same"
    assert len(observed(proto, batch())) == 5


def test_quantized_models_are_computed_as_written() -> None:
    """Q/DQ in float: a bias and an activation between grid points keep their values."""
    proto = model("""g (float[1, 4] x) => (float[1, 4] y) <float s = {0.5}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        m = MatMul(d, w)
        y = Relu(m)
    }""")
    w = np.random.default_rng(3).normal(size=(4, 4)).astype(np.float32)
    x = np.array([[0.3, -1.1, 2.0, 0.74]], np.float32)
    got = observed(weights(proto, w=w), {"x": x})
    assert got["d"].tolist() == [[0.5, -1.0, 2.0, 0.5]]
    assert np.allclose(got["m"], got["d"] @ w, rtol=1e-6)
    assert "q" not in got


# ------------------------------------------------------------------ weights that are large or lie in files


def external(tmp_path: Path) -> Path:
    proto = chain()
    big = np.random.default_rng(5).normal(size=(4, 3, 3, 40)).astype(np.float32)  # above what stays inline
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(big[..., :3].copy(), "w"))
    proto.graph.node.append(onnx.helper.make_node("Conv", ["x8", "big"], ["extra"]))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("x8", onnx.TensorProto.FLOAT, [1, 3, 8, 48]))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(big, "big"))
    path = tmp_path / "m.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path


def test_external_weights_from_any_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_model(external(tmp_path))
    inline = onnx.load(tmp_path / "m.onnx")
    feeds = {**batch(), "x8": np.ones((1, 3, 8, 48), np.float32)}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    got = dict(OrtActivations(opened).run(feeds))
    want = dict(OrtActivations(Model(inline)).run(feeds))
    assert list(got) == list(want)
    assert "extra" in got
    assert all(got[name].tobytes() == want[name].tobytes() for name in want)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before  # nothing written


def test_weights_are_not_serialized(tmp_path: Path) -> None:
    opened = open_model(external(tmp_path))
    model_bytes, arrays = ObservableModel(opened).stripped
    assert list(arrays) == ["big"]
    assert len(model_bytes.SerializeToString()) < 2000 + 4 * 108
    assert isinstance(arrays["big"], np.memmap)


# ------------------------------------------------------------------ operators that onnxruntime lacks

PLUGIN = """g (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] scores, int32[1] count) {
    c = Conv <kernel_shape = [3, 3]> (x, w)
    scores = Sigmoid(c)
    count, boxes = EfficientNMS_TRT <score_threshold = 0.5> (scores, c)
    half = Neg(boxes)
}"""


def test_plugins_and_what_follows_are_left_out() -> None:
    w = np.ones((4, 3, 3, 3), np.float32)
    activations = OrtActivations(Model(weights(model(PLUGIN), w=w)))
    assert activations.names == ("x", "c", "scores")
    assert activations.behind == dict.fromkeys(("count", "boxes", "half"), "EfficientNMS_TRT")
    assert len(dict(activations.run(batch(1)))) == 3


def test_weighted_operator_behind_a_plugin_is_refused_with_both_names() -> None:
    text = PLUGIN.replace("half = Neg(boxes)", "half = Neg(boxes)\n late = MatMul(half, v)")
    proto = weights(model(text), w=np.ones((4, 3, 3, 3), np.float32), v=np.ones((4, 4), np.float32))
    proto.graph.node[-1].name = "late_layer"
    with pytest.raises(QdqError, match="MatMul comes after EfficientNMS_TRT") as caught:
        OrtActivations(Model(proto))
    assert caught.value.where == "late_layer"


def test_product_of_two_activations_behind_a_plugin_is_none() -> None:
    text = PLUGIN.replace("half = Neg(boxes)", "half = MatMul(boxes, boxes)")
    assert "half" in OrtActivations(Model(weights(model(text), w=np.ones((4, 3, 3, 3), np.float32)))).behind


def test_unknown_domain_but_local_function_runs() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Neg(x)  y = my.Twice(a) }"
    function = '\n<domain: "my", opset_import: ["" : 13]> Twice (a) => (b) { b = Add(a, a) }'
    lacking = OrtActivations(Model(model(text)))
    assert (lacking.names, lacking.behind) == (("x", "a"), {"y": "my::Twice"})
    got = observed(model(text + function), {"x": np.array([1, 2], np.float32)})
    assert got["y"].tolist() == [-2, -4]


def test_plugin_inside_a_body_takes_the_node_with_it() -> None:
    proto = model("""g (float[2] x, bool c) => (float[2] z) {
        n = Neg(x)
        y = If (c) <
            then_branch = t () => (float[2] a) { a = Plugin_TRT(n) },
            else_branch = e () => (float[2] b) { b = Abs(n) }
        >
        z = Neg(y)
    }""")
    activations = OrtActivations(Model(proto))
    assert activations.names == ("x", "n")
    assert activations.behind == {"y": "Plugin_TRT", "z": "Plugin_TRT"}


def test_only_the_input_before_a_plugin() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Plugin_TRT(x) }")
    got = observed(proto, {"x": np.array([1, 2], np.float32)})
    assert got["x"].tolist() == [1, 2]


# ------------------------------------------------------------------ refusals


def test_run_failure_is_one_line_and_nothing_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    proto = model("g (float[N, 2] a, float[M, 2] b) => (float[N, 2] y) { y = Add(a, b) }")
    feeds = {"a": np.ones((2, 2), np.float32), "b": np.ones((3, 2), np.float32)}
    with pytest.raises(QdqError, match="cannot run it") as caught:
        observed(proto, feeds, where="m.onnx")
    assert caught.value.line().startswith("m.onnx: ")
    assert "ONNXRuntimeError" not in caught.value.line()
    assert capfd.readouterr().err == ""


def test_refused_model_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    proto.ir_version = 99
    with pytest.raises(QdqError, match="onnxruntime refuses it"):
        observed(proto, {})
    assert capfd.readouterr().err == ""


def test_message_loses_codes_and_places() -> None:
    text = "[ONNXRuntimeError] : 1 : FAIL : /src/core/model.cc:245 Model::Model(const A&, B*) Missing opset\nmore"
    assert one_line(RuntimeError(text)) == "Missing opset"
    assert len(one_line(RuntimeError("x" * 999))) == 240
    assert one_line(ValueError()) == "ValueError"


def test_provider_that_is_not_there() -> None:
    import onnxruntime

    with pytest.raises(QdqError, match="cpu, cuda, tensorrt"):
        OrtActivations(Model(chain()), provider="tpu")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(MissingPackageError, match=r"qdqtool\[gpu\]"):
            OrtActivations(Model(chain()), provider="cuda")


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackageError, match=r"qdqtool\[cpu\]"):
        OrtActivations(Model(chain()))


def test_two_flavors(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("onnxruntime", "onnxruntime-gpu"):
            return "1.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    _sole_flavor.cache_clear()
    with pytest.raises(MissingPackageError, match=r"onnxruntime and onnxruntime-gpu .*over one another"):
        OrtActivations(Model(chain()))


@pytest.mark.slow
def test_importing_does_not_import_onnxruntime() -> None:
    code = "import sys, qdqtool.calibration.engine as e; print('onnxruntime' in sys.modules, 'PIL' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert out.stdout.split() == ["False", "False"]


# ------------------------------------------------------------------ real models


@pytest.mark.shared
def test_plugin_behind_a_detector(shared: Path) -> None:
    opened = open_model(shared / "corpus/structure/gen_ultraface_EfficientNMS_TRT.onnx")
    activations = OrtActivations(opened)
    assert set(activations.behind.values()) == {"EfficientNMS_TRT"}
    got = dict(activations.run({"input": np.zeros((1, 3, 240, 320), np.float32)}))
    assert list(got) == list(activations.names)


@pytest.mark.shared
def test_external_data_of_another_writer(shared: Path) -> None:

    path = shared / "corpus/structure/rten_mnist_external.onnx"
    opened = open_model(path)
    feeds = {"input": np.random.default_rng(0).normal(size=(1, 1, 28, 28)).astype(np.float32)}
    got = dict(OrtActivations(opened).run(feeds))
    session = session_of(path)
    for output, want in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert np.allclose(got[output.name], want, rtol=1e-4, atol=1e-5)  # fusions round differently


def test_a_type_that_the_file_declares_wrongly_is_refused_by_name() -> None:
    """A runtime refuses such a model: no scale of it would be of use."""
    proto = model("g (float[1,4] x) => (float[1,4] z) { a = Abs(x) z = Abs(a) }")
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    with pytest.raises(QdqError, match=r"z as uint8, .*float"):
        OrtActivations(Model(proto))


def ops(model: onnx.ModelProto) -> list[str]:
    view = GraphView(model.graph)
    return [node.op_type for node in with_known_numbers(view.every, view, ())]


def test_what_computes_sizes_is_one_constant() -> None:
    assert ops(model_of(NET)) == ["Constant", "Reshape", "Relu"]


def test_tensors_keep_their_values() -> None:
    model = model_of(NET)
    given = {"x": np.arange(24, dtype=np.float32).reshape(4, 6)}
    found = dict(OrtActivations(Model(model), ["r", "y"]).run(given))
    np.testing.assert_array_equal(found["r"], given["x"].reshape(2, 2, 6))
    assert [node.op_type for node in ObservableModel(Model(model)).stripped[0].graph.node].count("Shape") == 0


@pytest.mark.parametrize(
    "text",
    [
        NET.replace("float[4,6] x", "float[N,6] x"),
        NET.replace("=> (float[A,B,C] y)", "=> (float[A,B,C] y, float[4,6] x2)").replace("s = Shape(x)", "x2 = Neg(x) s = Shape(x2)"),
    ],
    ids=["of a free axis", "of a tensor that is declared"],
)  # fmt: skip
def test_a_size_that_a_run_may_have_otherwise_is_computed(text: str) -> None:
    assert "Shape" in ops(model_of(text))


def test_a_declared_shape_of_a_tensor_between_nodes_is_not_trusted() -> None:
    model = model_of(NET)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, [2, 2, 6]))
    assert "Shape" in ops(model)


def test_a_number_that_is_asked_for_stays() -> None:
    view = GraphView(model_of(NET).graph)
    kept = with_known_numbers(view.every, view, ("h",))
    assert [node.output[0] for node in kept if node.op_type == "Constant"] == ["h", "t"]


def test_sizes_that_another_graph_knows_are_not_followed_again() -> None:
    known, other = GraphView(model_of(NET).graph), GraphView(model_of(NET.replace("Relu", "Abs")).graph)
    kept = with_known_numbers(other.every, other, (), known)
    assert [node.op_type for node in kept] == ["Constant", "Reshape", "Abs"] and other.known_shapes is None
