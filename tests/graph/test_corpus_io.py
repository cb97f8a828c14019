# SPDX-License-Identifier: Apache-2.0
"""Law L0 and lifting on every model at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.graph.io import open_model, save_model, serialize
from qdqtool.graph.normalize import normalize
from qdqtool.graph.types import opset_of
from qdqtool.graph.validate import subgraphs_of
from tests.conftest import shared_folder
from tests.laws.law_checks import few_at_once
from tests.ort_session import session_of

_FOLDER = shared_folder()
FILES = sorted((_FOLDER / "corpus").rglob("*.onnx")) if _FOLDER else []
TRAINED = [file for file in FILES if file.parent.name == "models"]
OTHERS = [file for file in FILES if file not in TRAINED]
pytestmark = pytest.mark.shared


def stem(file: Path) -> str:
    return file.stem


def tensor_names(model: onnx.ModelProto) -> set[str]:
    names: set[str] = set()
    graphs = [model.graph]
    while graphs:
        for node in graphs.pop().node:
            names.update(node.input, node.output)
            graphs.extend(subgraphs_of(node))
    return names


def test_the_corpus_is_there(shared: Path) -> None:
    assert len(FILES) == 96 and len(TRAINED) == 29


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_load_and_save_give_the_files_own_bytes(file: Path, tmp_path: Path) -> None:
    opened = open_model(file)
    copy = save_model(opened.proto, tmp_path / file.name, folder=opened.folder, inputs=[file])
    assert copy.read_bytes() == file.read_bytes()
    assert serialize(open_model(copy).proto) == serialize(opened.proto)  # its data came along


# The networks of constants among the odd structures are large: run by `make slow` and by .ci/run.
_BY_SIZE = [pytest.param(file, marks=pytest.mark.slow) if file.stem.startswith("light_") else file for file in OTHERS]


@pytest.mark.parametrize("file", [*few_at_once(TRAINED), *_BY_SIZE], ids=[stem(file) for file in (*TRAINED, *OTHERS)])
def test_lifting_keeps_names_weights_and_everything_around_the_nodes(file: Path) -> None:
    before, opened = open_model(file).proto, open_model(file)
    after = normalize(opened)
    if (opset_of(before) or 1) >= 13:
        assert after.lifted_from is None and serialize(opened.proto) == file.read_bytes()
        return
    assert (
        after.lifted_from == (opset_of(before) or 1) and opset_of(opened.proto) == 13 and opened.proto.ir_version >= 7
    )
    again = open_model(file)
    normalize(again)
    assert serialize(again.proto) == serialize(opened.proto)
    assert tensor_names(before) <= tensor_names(opened.proto)
    names = [node.name for node in before.graph.node if node.name]
    known = set(names)
    assert [node.name for node in opened.proto.graph.node if node.name in known] == names
    for model in (before, opened.proto):
        model.ir_version = 7
        model.ClearField("opset_import")
        model.graph.ClearField("node")
    assert serialize(before) == serialize(opened.proto)


def outputs_of(model: bytes, folder: Path) -> list[Any]:

    session = session_of(model)
    random = np.random.default_rng(0)
    feeds = {}
    for value in session.get_inputs():
        guess = {0: 1, 2: 128, 3: 128}
        shape = [size if isinstance(size, int) else guess.get(axis, 8) for axis, size in enumerate(value.shape)]
        if value.type == "tensor(float)":
            feeds[value.name] = random.standard_normal(shape).astype(np.float32)
        else:
            feeds[value.name] = random.integers(0, 2, shape).astype(np.int64)
    return session.run(None, feeds)  # type: ignore[no-any-return]


@pytest.mark.parametrize("file", few_at_once(TRAINED), ids=[file.stem for file in TRAINED])
def test_a_lifted_trained_model_computes_the_same(file: Path) -> None:
    """To the bit but for mnist8: raising IR 3 turns its listed weights from constants to inputs, not folded before."""
    pytest.importorskip("onnxruntime")
    opened = open_model(file)
    result = normalize(opened)
    if result.lifted_from is None:
        assert serialize(opened.proto) == file.read_bytes()
        return
    before, after = (outputs_of(data, file.parent) for data in (file.read_bytes(), serialize(opened.proto)))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 if file.stem == "mnist8" else 0)
