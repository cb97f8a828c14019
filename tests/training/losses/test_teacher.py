# SPDX-License-Identifier: Apache-2.0
"""The teacher: pairs taken out of a form of any width, and a session that gives what is wanted or says why not."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.autodiff.pairs import PairFunction
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.training.losses.teacher import Teacher, float_twin
from tests.graphs import model_of
from tests.training.losses.loss_graphs import outputs_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

NET = """net (float[N,3] x) => (float[N,2] y, int64[N,1] best) <float[3,4] a, float[4,2] b>
{ h = MatMul(x, a) r = Sigmoid(h) y = MatMul(r, b) best = ArgMax<axis=1>(y) }"""
LARGE = np.array([3e38, 3e38], np.float32)
X = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)


def with_pair(model: onnx.ModelProto, tensor: str, kind: int, zero: int = 0, scale: float = 0.5) -> onnx.ModelProto:
    """The model with a pair on one tensor, as the training form has it; every reader reads the pair."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    opset = next(one.version for one in proto.opset_import if not one.domain)
    for node in proto.graph.node:
        node.input[:] = [f"{tensor}_pair" if name == tensor else name for name in node.input]
    at = next((i + 1 for i, node in enumerate(proto.graph.node) if tensor in node.output), 0)
    node = helper.make_node(
        "PairFunction", [tensor, "s", "z"], [f"{tensor}_pair"], f"{tensor}_pair", domain=PAIR_DOMAIN
    )
    proto.graph.node.insert(at, node)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), "s"))
    proto.graph.initializer.append(helper.make_tensor("z", kind, [], [zero]))
    proto.functions.append(PairFunction().function(opset))
    proto.opset_import.append(helper.make_opsetid(PAIR_DOMAIN, 1))
    return proto


@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.INT4, TensorProto.INT16])
@pytest.mark.parametrize("tensor", ["x", "h", "r", "a"])
def test_the_twin_is_the_network_that_was_quantized(tensor: str, kind: int) -> None:
    plain = model_of(NET, opset=21, ir=10)
    twin = float_twin(with_pair(plain, tensor, kind))
    onnx.checker.check_model(twin)
    assert not twin.functions
    assert [node.op_type for node in twin.graph.node] == [node.op_type for node in plain.graph.node]
    assert {one.name for one in twin.graph.initializer} == {"a", "b"}
    assert outputs_of(twin, {"x": X})["y"].tobytes() == outputs_of(plain, {"x": X})["y"].tobytes()


@pytest.mark.parametrize(("zero", "ops"), [(0, ["MatMul", "Relu", "Sigmoid"]), (128, ["MatMul", "Sigmoid", "MatMul"])])
def test_unsigned_integers_that_begin_at_zero_did_the_work_of_relu(zero: int, ops: list[str]) -> None:
    twin = float_twin(with_pair(model_of(NET), "h", TensorProto.UINT8, zero))
    assert [node.op_type for node in twin.graph.node][:3] == ops


def test_an_output_behind_a_pair_keeps_its_name() -> None:
    form = with_pair(model_of(NET), "y", TensorProto.INT8)
    form.graph.output[0].name = "y_pair"
    twin = float_twin(form)
    assert outputs_of(twin, {"x": X})["y_pair"].shape == (4, 2)


def test_the_form_is_not_changed_and_later_training_does_not_show() -> None:
    form = with_pair(model_of(NET), "h", TensorProto.INT8)
    before = form.SerializeToString()
    twin = float_twin(form)
    assert form.SerializeToString() == before
    form.graph.initializer[0].raw_data = bytes(48)
    assert any(np.frombuffer(tensor.raw_data, np.float32).any() for tensor in twin.graph.initializer[:1])


def test_it_gives_what_is_wanted_and_no_more() -> None:
    teacher = Teacher(Model(model_of(NET)), {"x": X})
    assert teacher.run({"x": X}) == {}
    teacher.fetch(("r", "y", "r"))
    found = teacher.run({"x": X, "label": np.zeros(4)})
    assert list(found) == ["r", "y"]
    assert found["y"].tobytes() == outputs_of(model_of(NET), {"x": X})["y"].tobytes()
    assert teacher.shapes(["y", "h"]) == {"y": (4, 2), "h": (4, 4)}
    assert list(teacher.run({"x": X})) == ["r", "y"]  # measuring leaves what is fetched alone


def test_a_smaller_fixed_batch_takes_the_student_s_in_pieces() -> None:
    whole = Teacher(Model(model_of(NET)), {"x": X})
    pieces = Teacher(Model(model_of(NET.replace("float[N,3]", "float[2,3]"))), {"x": X})
    for teacher in (whole, pieces):
        teacher.fetch(["y"])
    assert pieces.shapes(["y"]) == {"y": (4, 2)}
    np.testing.assert_allclose(pieces.run({"x": X})["y"], whole.run({"x": X})["y"], rtol=1e-6)


def test_one_that_takes_another_batch_is_told_so() -> None:
    teacher = Teacher(Model(model_of(NET.replace("float[N,3]", "float[3,3]"))), {"x": X})
    with pytest.raises(QdqError, match=r"onnxruntime cannot run .*student's batch"):
        teacher.shapes(["y"])


def test_the_only_input_may_have_another_name() -> None:
    teacher = Teacher(Model(model_of(NET)), {"images": X})
    teacher.fetch(["y"])
    assert teacher.run({"images": X})["y"].shape == (4, 2)


def test_several_inputs_go_by_name() -> None:
    net = "net (float[N,3] one, float[N,3] two) => (float[N,3] y) { y = Add(one, two) }"
    teacher = Teacher(Model(model_of(net)), {"two": X, "one": -X})
    teacher.fetch(["y"])
    assert not teacher.run({"two": X, "one": -X})["y"].any()
    with pytest.raises(QdqError, match=r"input 'one' .* ones"):
        Teacher(Model(model_of(net)), {"two": X, "ones": X})


def test_tensors_that_cannot_be_had() -> None:
    net = NET.replace("best = ArgMax", "odd = trt.Odd(y) best = ArgMax")
    teacher = Teacher(Model(model_of(net)), {"x": X}, "t.onnx")
    with pytest.raises(QdqError, match=r"t\.onnx: tensor odd .*Odd"):
        teacher.shapes(["odd"])
    with pytest.raises(QdqError, match=r"tensor Y .* y"):
        teacher.shapes(["Y"])
    with pytest.raises(QdqError, match="tensor best is int64, not float32"):
        teacher.shapes(["best"])


def test_what_is_not_finite_is_refused() -> None:
    teacher = Teacher(Model(model_of(NET)), {"x": X}, "t.onnx")
    teacher.fetch(["y"])
    with pytest.raises(QdqError, match=r"t\.onnx: tensor y holds NaN or Inf"):
        teacher.run({"x": X * np.nan})


def test_values_whose_sum_is_too_large_are_no_warning() -> None:
    teacher = Teacher(Model(model_of("net (float[2] x) => (float[2] y) { y = Identity(x) }")), {"x": LARGE}, "t.onnx")
    teacher.fetch(["y"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert teacher.run({"x": LARGE})["y"].tobytes() == LARGE.tobytes()


def test_weights_beside_the_model_are_found(tmp_path: Path) -> None:
    model = model_of(NET.replace("float[3,4] a", "float[3,400] a").replace("float[4,2] b", "float[400,2] b"))
    wanted = outputs_of(model, {"x": X})["y"]
    onnx.save(model, tmp_path / "t.onnx", save_as_external_data=True, location="t.bin", size_threshold=0)
    teacher = Teacher(Model(onnx.load(tmp_path / "t.onnx", load_external_data=False), tmp_path), {"x": X})
    teacher.fetch(["y"])
    np.testing.assert_allclose(teacher.run({"x": X})["y"], wanted, rtol=1e-5)


def test_the_teacher_runs_where_the_student_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QdqError, match="cpu, cuda, tensorrt"):
        Teacher(Model(model_of(NET)), {"x": X}, provider="tpu")
    asked: list[list[str]] = []

    def start(runtime: object, parts: object, options: object, providers: list[str], where: object) -> None:
        asked.append(providers)

    monkeypatch.setattr("qdqtool.training.losses.teacher.provider_names", lambda runtime, provider: [provider, "CPU"])
    monkeypatch.setattr("qdqtool.training.losses.teacher.start_session", start)
    Teacher(Model(model_of(NET)), {"x": X}, provider="cuda").fetch(["y"])
    assert asked == [["cuda", "CPU"]]
