# SPDX-License-Identifier: Apache-2.0
"""Labels are what the data hold beside the model's inputs, whatever kind of data that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.data.loader import DataOptions, open_loader
from qdqtool.data.model_inputs import Input
from qdqtool.training.label_data import label_inputs

F = np.dtype(np.float32)
FREE = Input("x", (None, 2), F)
FIXED = Input("x", (4, 2), F)
ARRAYS = {"x": np.zeros((8, 2), np.float32), "boxes": np.zeros((8, 3, 4), np.float32), "class": np.zeros(8, np.int64)}


def test_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, **ARRAYS)
    found = label_inputs(path, [FREE], DataOptions())
    assert found == (Input("boxes", (None, None, None), F), Input("class", (None,), np.dtype(np.int64)))
    assert label_inputs(ARRAYS, [FREE], DataOptions()) == found, "in memory, too"
    batch = next(iter(open_loader(path, [FREE, *found], DataOptions(batch=2))))
    assert {name: array.shape for name, array in batch.items()} == {"x": (2, 2), "boxes": (2, 3, 4), "class": (2,)}


def test_a_fixed_batch_is_the_labels_too(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, **ARRAYS)
    found = label_inputs(path, [FIXED], DataOptions())
    assert [one.first for one in found] == [4, 4]
    batches = list(open_loader(path, [FIXED, *found], DataOptions()))
    assert [batch["class"].shape for batch in batches] == [(4,), (4,)]


@pytest.mark.parametrize("kind", ["function", "list", "script"])
def test_what_is_walked(tmp_path: Path, kind: str) -> None:
    samples = [{"x": np.zeros((1, 2), np.float32), "class": np.zeros(1, np.int64)}] * 2
    script = tmp_path / "load.py"
    script.write_text(
        "import numpy as np\ndef load_data():\n"
        "    return [{'x': np.zeros((1, 2), np.float32), 'class': np.zeros(1, np.int64)}] * 2\n"
    )
    data = {"function": lambda: samples, "list": samples, "script": str(script)}[kind]
    found = label_inputs(data, [FREE], DataOptions())  # type: ignore[arg-type]
    assert found == (Input("class", (None,), np.dtype(np.int64)),)
    assert len(list(open_loader(data, [FREE, *found]))) == 2  # type: ignore[arg-type]


def test_data_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "d.npy"
    np.save(path, ARRAYS["x"])
    assert label_inputs(path, [FREE], DataOptions()) == ()
    assert label_inputs(ARRAYS["x"], [FREE], DataOptions()) == ()
    assert label_inputs(tmp_path, [FREE], DataOptions()) == ()
    assert label_inputs(iter([{"x": ARRAYS["x"]}]), [FREE], DataOptions()) == ()
