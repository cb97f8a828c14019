# SPDX-License-Identifier: Apache-2.0
"""Weights that edits write lie in a temporary file, and the model that is written is the same to the byte."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import ConditionOptions, InsertOptions, condition, insert
from qdqtool.graph import weight_store
from qdqtool.graph.edit import Editor
from qdqtool.graph.io import copy_of, serialize
from qdqtool.graph.model import Model
from qdqtool.graph.model_file import is_unread
from qdqtool.graph.tensors import array_of
from qdqtool.graph.weight_store import WeightStore
from qdqtool.match.plan import PlanOptions
from tests.conditioning.nets import samples
from tests.graphs import model_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted on Linux")
LARGE = np.arange(6000, dtype=np.float32)
TEXT = "g (float[N,6000] x) => (float[N,6000] y) <float[6000] w> { y = Add(x, w) }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, empty; weights of 16 KiB and more are large."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(weight_store, "_LEAST_BYTES", 16 << 10)
    return tmp_path


def edited(store: WeightStore | None) -> onnx.ModelProto:
    """A model with another weight, and one more."""
    proto = model_of(TEXT)
    editor = Editor(Model(proto, store=store).view)
    editor.set_initializer("w", LARGE)
    editor.add_initializer("small", np.ones(3, np.float32))
    editor.add_initializer("more", LARGE.astype(np.int64)[::2])
    editor.commit()
    return proto


def open_files() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def wide_net(activation: str) -> onnx.ModelProto:
    """Two convolutions of 32 KiB each; the channels between them lie up to 2**16 apart."""
    proto = model_of(
        f"""g (float[N,64,4,4] x) => (float[N,64,4,4] y) <float[128,64,1,1] w1, float[64,128,1,1] w2>
        {{ c = Conv(x, w1) {activation} y = Conv(a, w2) }}"""
    )
    first = proto.graph.initializer[0]
    rows = array_of(first, None) * 2.0 ** -np.arange(128)[:, None, None, None].clip(0, 16)
    first.CopyFrom(onnx.numpy_helper.from_array(rows.astype(np.float32), "w1"))
    return proto


def test_large_weights_lie_in_the_file_and_are_the_same_model(folder: Path) -> None:
    store = WeightStore()
    held, plain = edited(store), edited(None)
    assert [is_unread(tensor) for tensor in held.graph.initializer] == [True, False, True]
    assert held.ByteSize() < 1000 < plain.ByteSize()
    assert serialize(held) == serialize(plain)
    for tensor, other in zip(copy_of(held).graph.initializer, plain.graph.initializer, strict=True):
        np.testing.assert_array_equal(array_of(tensor, None), array_of(other, None))
    assert not list(folder.iterdir()), "the file has no name: nothing is left of a process that is killed"
    first, many = held.graph.initializer[0], open_files()
    del store
    gc.collect()
    assert open_files() == many - 1, "the file goes with the store"
    assert not is_unread(first)


def test_without_a_store_and_without_room_weights_stay_in_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert serialize(edited(WeightStore())) == serialize(edited(None))


def test_a_copy_writes_where_the_model_does_unless_it_has_a_store_of_its_own() -> None:
    outer, inner = WeightStore(), WeightStore()
    model = Model(model_of(TEXT), store=outer)
    assert model.view.store is outer and model.copy().view.store is outer and model.copy(inner).view.store is inner
    plain = Model(model_of(TEXT))
    assert plain.with_store().view.store is plain.view.store is None, "a model that is given back stays in memory"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["s = Sigmoid(c) a = Mul(c, s)", "a = Relu(c)"])
@pytest.mark.parametrize("verb", ["condition", "insert"])
def test_conditioning_a_file_leaves_no_weights_in_memory_and_gives_the_same(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, text: str, verb: str
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    opened: list[WeightStore] = []
    real = WeightStore._open
    monkeypatch.setattr(WeightStore, "_open", lambda store: opened.append(store) or real(store))  # type: ignore[func-returns-value]
    work, plan = tmp_path_factory.mktemp("work"), PlanOptions(float_heads="none")
    onnx.save(wide_net(text), work / "m.onnx")
    np.savez(work / "d.npz", x=samples(6, (64, 4, 4)))
    data, before = str(work / "d.npz"), open_files()
    if verb == "condition":
        condition(work / "m.onnx", data, ConditionOptions(plan=plan), output=work / "o.onnx")
        made = condition(wide_net(text), data, ConditionOptions(plan=plan)).model
    else:
        options = InsertOptions(plan=plan, condition="auto")
        insert(work / "m.onnx", data=data, options=options, output=work / "o.onnx")
        made = insert(wide_net(text), data=data, options=options).model
    assert opened
    opened.clear()
    assert not any(map(is_unread, made.graph.initializer)), "what is given back knows nothing of this process"
    assert serialize(made) != serialize(wide_net(text))
    assert (work / "o.onnx").read_bytes() == made.SerializeToString(deterministic=True)
    gc.collect()
    assert open_files() <= before
