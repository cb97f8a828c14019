# SPDX-License-Identifier: Apache-2.0
"""What each kind of data becomes: the same samples in the same order, grouped as asked, or one clear refusal."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.data.loader import Data, DataLoader, DataOptions, Input, inputs_of, open_loader
from qdqtool.errors import QdqError

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
X = Input("x", ("N", 2), F32)
FIXED = Input("x", (1, 2), F32)


def rows(count: int) -> npt.NDArray[np.float32]:
    return np.arange(2 * count, dtype=np.float32).reshape(count, 2)


def fed(feed: DataLoader, name: str = "x") -> list[Any]:
    return [batch[name].tolist() for batch in feed]


def shapes(feed: DataLoader, name: str = "x") -> list[tuple[int, ...]]:
    return [batch[name].shape for batch in feed]


def npz(tmp_path: Path, **arrays: npt.NDArray[Any]) -> Path:
    np.savez(tmp_path / "d.npz", **arrays)
    return tmp_path / "d.npz"


def refusal(data: Data, *inputs: Input, **options: Any) -> QdqError:
    with pytest.raises(QdqError) as caught:
        list(open_loader(data, inputs, DataOptions(**options)))
    assert "\n" not in caught.value.line()
    return caught.value


# ------------------------------------------------------------------ what a model takes


def test_inputs_are_what_has_no_default() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]>
        g (float[N, 3, 4] a, float[3] w, int64 n, int64[] any) => (float[N, 3, 4] y) <float[3] w = {1, 2, 3}>
        { y = Identity(a) }""")
    assert inputs_of(model.graph) == (Input("a", ("N", 3, 4), F32), Input("n", (), I64), Input("any", None, I64))


def test_minus_one_and_zero_mean_free() -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [-1, 0, 3])
    (one,) = inputs_of(onnx.helper.make_graph([], "g", [value], []))
    assert one.shape == (None, None, 3)
    assert one.batched


def test_sequence_input_is_refused() -> None:
    value = onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    with pytest.raises(QdqError, match="not a tensor"):
        inputs_of(onnx.helper.make_graph([], "g", [value], []))


# ------------------------------------------------------------------ .npz and .npy


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (9, [5])])
def test_npz_is_grouped_in_order(tmp_path: Path, batch: int, sizes: list[int]) -> None:
    feed = open_loader(npz(tmp_path, x=rows(5)), [X], DataOptions(batch=batch))
    for _ in range(2):  # it can be walked again
        batches = [one["x"] for one in feed]
        assert [len(one) for one in batches] == sizes
        assert np.array_equal(np.concatenate(batches), rows(5))
    assert (feed.samples, feed.batches) == (5, len(sizes))


def test_single_array_may_have_any_name(tmp_path: Path) -> None:
    assert shapes(open_loader(npz(tmp_path, images=rows(2)), [X])) == [(1, 2), (1, 2)]


def test_npy_is_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", rows(3))
    assert fed(open_loader(tmp_path / "d.npy", [X])) == [[row] for row in rows(3).tolist()]
    assert re.search("one array, .* 2 inputs", refusal(tmp_path / "d.npy", X, Input("y", (1,), F32)).reason)


def test_fixed_batch_groups_and_leaves_the_rest_out_aloud(tmp_path: Path) -> None:
    feed = open_loader(npz(tmp_path, x=rows(7)), [Input("x", (3, 2), F32)])
    assert shapes(feed) == [(3, 2), (3, 2)]
    assert re.match("the last 1 samples .* 3, .*x fixes", "".join(feed.notes))
    assert (feed.samples, feed.batches) == (6, 2)


def test_batch_against_a_fixed_one_is_refused(tmp_path: Path) -> None:
    error = refusal(npz(tmp_path, x=rows(4)), FIXED, batch=2)
    assert error.where == "--batch"
    assert "'x' takes [1, 2]" in error.reason


def test_states_and_scalars_beside_the_data(tmp_path: Path) -> None:
    """A recurrent model: a state whose first axis is no batch, and a scalar that all samples share or each has."""
    inputs = [X, Input("state", (2, "N", 3), F32), Input("rate", (), I64)]
    state = np.arange(36, dtype=np.float32).reshape(6, 1, 2, 3)[:3, :, :, :].transpose(0, 2, 1, 3)
    for rate in (np.int64(16000), np.full(3, 16000)):
        feed = open_loader(npz(tmp_path, x=rows(3), state=state, rate=rate), inputs)
        got = list(feed)
        assert [one["x"].shape for one in got] == [(1, 2)] * 3
        assert all(np.array_equal(one["state"], state[k]) for k, one in enumerate(got))
        assert [(int(one["rate"]), one["rate"].shape) for one in got] == [(16000, ())] * 3


def test_state_as_rows_of_its_first_axis(tmp_path: Path) -> None:
    feed = open_loader(npz(tmp_path, x=rows(2), s=np.arange(4.0)), [X, Input("s", (2,), F32)])
    assert fed(feed, "s") == [[0, 1], [2, 3]]


def test_uneven_numbers_of_samples(tmp_path: Path) -> None:
    error = refusal(npz(tmp_path, x=rows(3), y=rows(2)), X, Input("y", ("N", 2), F32))
    assert "x 3, y 2" in error.reason


def test_archive_is_streamed(tmp_path: Path) -> None:
    wide = Input("x", ("N", 50_000), F32)
    feed = open_loader(npz(tmp_path, x=np.ones((100, 50_000), np.float32)), [wide])
    tracemalloc.start()
    assert sum(len(batch["x"]) for batch in feed) == 100
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000  # 20 MB as a whole


# ------------------------------------------------------------------ dictionaries: scripts, JSON, Python


def loader(tmp_path: Path, body: str) -> Path:
    (tmp_path / "d.py").write_text(f"import numpy as np\ndef load_data():\n{body}")
    return tmp_path / "d.py"


def test_script_batches_stay_as_they_come(tmp_path: Path) -> None:
    path = loader(tmp_path, " for n in (3, 1, 2): yield {'x': np.full((n, 2), n, 'float32')}\n")
    assert shapes(open_loader(path, [X])) == [(3, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize(("batch", "sizes"), [(2, [2, 2, 2, 1]), (4, [4, 3]), (50, [7])])
def test_script_is_regrouped_when_asked(tmp_path: Path, batch: int, sizes: list[int]) -> None:
    path = loader(
        tmp_path, " a = np.arange(14, dtype='float32').reshape(7, 2)\n yield {'x': a[:5]}\n yield {'x': a[5:]}\n"
    )
    batches = [one["x"] for one in open_loader(path, [X], DataOptions(batch=batch))]
    assert [len(one) for one in batches] == sizes
    assert np.array_equal(np.concatenate(batches), rows(7))


def test_regrouping_needs_one_shape() -> None:
    data = [{"x": np.ones((1, 3), np.float32)}, {"x": np.ones((1, 4), np.float32)}]
    assert "one batch" in refusal(data, Input("x", ("N", "T"), F32), batch=2).reason
    assert len(list(open_loader(data, [Input("x", ("N", "T"), F32)]))) == 2


def test_function_in_the_text(tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text("def mine():\n yield {'x': [[1.0, 2.0]]}\n")
    assert fed(open_loader(f"{tmp_path / 'd.py'}:mine", [X])) == [[[1, 2]]]


def test_callable_iterable_and_generator() -> None:
    data = [{"x": rows(1)}]
    assert len(list(open_loader(lambda: iter(data), [X]))) == 1
    assert len(list(open_loader(data, [X]))) == 1

    def once() -> Iterator[dict[str, Any]]:
        yield from data

    feed = open_loader(once(), [X])
    assert len(list(feed)) == 1
    with pytest.raises(QdqError, match="iterated only once"):
        list(feed)


def test_folder_of_json_in_order_of_names(tmp_path: Path) -> None:
    polygraphy = pytest.importorskip("polygraphy.json")
    for k in (1, 0):
        polygraphy.save_json([{"x": rows(1) + k}], str(tmp_path / f"000{k}.json"))
    assert fed(open_loader(tmp_path, [X])) == [[[0, 1]], [[1, 2]]]


# ------------------------------------------------------------------ images


def test_images_in_order_of_names(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    for k, name in enumerate(("b.png", "a.png", "c.bmp")):
        pil.fromarray(np.full((2, 2, 3), k, np.uint8)).save(tmp_path / name)
    (tmp_path / "labels.txt").write_text("no image")
    one = Input("x", ("N", 3, 2, 2), F32)
    feed = open_loader(tmp_path, [one], DataOptions(preprocess="scale=1"))
    assert [batch["x"].max() for batch in feed] == [1, 0, 2]
    assert shapes(open_loader(tmp_path, [one], DataOptions(preprocess="scale=1", batch=2))) == [
        (2, 3, 2, 2),
        (1, 3, 2, 2),
    ]
    fixed = open_loader(tmp_path, [Input("x", (2, 3, 2, 2), F32)], DataOptions(preprocess="scale=1"))
    assert shapes(fixed) == [(2, 3, 2, 2)]
    assert fixed.notes
    assert feed.description["name"] == tmp_path.name
    assert str(tmp_path) not in str(feed.description)


def test_images_for_an_input_of_integers(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 2, 3), dtype=np.uint8)
    pil.fromarray(pixels).save(tmp_path / "a.png")
    one = Input("x", ("N", 2, 2, 3), np.dtype(np.uint8))
    (batch,) = open_loader(tmp_path, [one], DataOptions(preprocess="scale=1"))
    assert batch["x"].dtype == np.uint8
    assert np.array_equal(batch["x"][0], pixels)
    error = refusal(tmp_path, one, preprocess="scale=1/255")
    assert error.where == str(tmp_path / "a.png")
    assert "uint8" in error.reason and "--preprocess scale=1 makes uint8" in error.todo
    signed = replace(one, dtype=np.dtype(np.int8))
    assert "--preprocess scale=1,mean=128 makes int8" in refusal(tmp_path, signed, preprocess="keras").todo
    (batch,) = open_loader(tmp_path, [signed], DataOptions(preprocess="scale=1,mean=128"))
    assert np.array_equal(batch["x"][0], pixels.astype(np.int16) - 128)


def test_images_need_to_know_how(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    image = Input("x", (1, 3, 2, 2), F32)
    assert "--preprocess" in refusal(tmp_path, image).todo
    assert "the model has 2 inputs" in refusal(tmp_path, image, X, preprocess="ssd").reason


def test_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    assert "holds no images" in refusal(tmp_path, Input("x", (1, 3, 2, 2), F32), preprocess="ssd").reason


def test_one_image_a_pattern_and_a_folder_of_folders(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir()
        pillow.new("RGB", (2, 2), (int(name[2]),) * 3).save(tmp_path / name)
    one, options = Input("x", (1, 3, 2, 2), F32), DataOptions(preprocess="scale=1")
    for data, values in ((tmp_path, [1, 2]), (tmp_path / "b" / "2.png", [2]), (str(tmp_path / "?" / "1.*"), [1])):
        assert [batch["x"].max() for batch in open_loader(data, (one,), options)] == values
    assert re.match("2 images .*: a, b$", "".join(open_loader(tmp_path, (one,), options).notes))


# ------------------------------------------------------------------ limit, and what is refused


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1]), (3, [2, 1]), (4, [2, 2]), (99, [2, 2, 1])])
def test_limit_counts_samples(tmp_path: Path, limit: int, sizes: list[int]) -> None:
    feed = open_loader(npz(tmp_path, x=rows(5)), [X], DataOptions(batch=2, limit=limit))
    assert [len(one) for one in fed(feed)] == sizes
    assert (feed.samples, feed.batches) == (sum(sizes), len(sizes))


def test_limit_stops_a_loader_without_end(tmp_path: Path) -> None:
    path = loader(tmp_path, " while True: yield {'x': np.ones((2, 2), 'float32')}\n")
    assert shapes(open_loader(path, [X], DataOptions(limit=5))) == [(2, 2), (2, 2), (1, 2)]


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": -1}, {"batch": 0}])
def test_numbers_that_leave_nothing(options: dict[str, int]) -> None:
    assert "give 1 or more" in refusal([{"x": rows(1)}], X, **options).todo


def test_limit_below_a_fixed_batch(tmp_path: Path) -> None:
    assert "than the 3 samples" in refusal(npz(tmp_path, x=rows(9)), Input("x", (3, 2), F32), limit=2).reason


def test_no_samples(tmp_path: Path) -> None:
    assert "no samples" in refusal([], X).reason
    assert "no samples" in refusal(npz(tmp_path, x=rows(0)), X).reason
    assert "no samples" in refusal(loader(tmp_path, " return []\n"), X).reason


@pytest.mark.parametrize(
    ("item", "reason", "todo"),
    [
        ({}, "nothing for the input 'x'", "the inputs are x"),
        ({"X_": rows(1)}, "'X_' is not an input", "the inputs are x"),
        ({"x": rows(1), "xx": rows(1)}, "did you mean x", ""),
        ({"x": rows(1)[0]}, "takes [N, 2], the data has [2]", "batch axis is missing"),
        ({"x": np.ones((1, 3), np.float32)}, "the data has [1, 3]", ""),
        ({"x": np.ones((1, 2), np.uint8)}, "takes float32, the data is uint8", "preprocess it"),
        ({"x": np.array([[1, np.nan]], np.float32)}, "holds NaN", ""),
        ({"x": np.array([[1, -np.inf]], np.float32)}, "holds Inf", ""),
        ({"x": np.array([[1, 1e300]])}, "values beyond it", ""),
    ],
)
def test_data_that_does_not_fit(item: dict[str, Any], reason: str, todo: str) -> None:
    error = refusal([item], X)
    assert reason in error.reason
    assert todo in error.todo


def test_archive_is_checked_before_it_is_read(tmp_path: Path) -> None:
    """Names, shapes and dtypes are in the headers: `open_loader` itself refuses."""
    for arrays, part in (
        ({"y": rows(1), "z": rows(1)}, "'y' is not an input"),
        ({"x": np.ones((4, 2, 9), np.float32)}, r"has \[4, 2, 9\]"),
        ({"x": np.ones((4, 2), np.uint8)}, "the data is uint8"),
    ):
        with pytest.raises(QdqError, match=part):
            open_loader(npz(tmp_path, **arrays), [X])


def test_casts_that_lose_nothing() -> None:
    ids = Input("ids", ("N",), I64)
    (batch,) = open_loader([{"x": np.array([[0.1, 2.0]]), "ids": np.array([3], np.int32)}], [X, ids])
    assert batch["x"].tobytes() == np.array([[0.1, 2.0]], np.float32).tobytes()
    assert (batch["ids"].dtype, batch["ids"].tolist()) == (I64, [3])
    error = refusal([{"n": np.array([1 << 40])}], Input("n", ("N",), np.dtype(np.int32)))
    assert "values beyond it" in error.reason
    assert re.search("takes int64, .*float32$", refusal([{"ids": np.ones(1, np.float32)}], ids).reason)


@pytest.mark.parametrize("name", ["x" * 300 + ".npz", "a\0b"])
def test_paths_that_cannot_be(tmp_path: Path, name: str) -> None:
    assert "cannot be read" in refusal(f"{tmp_path}/{name}", X).reason


@pytest.mark.parametrize("preprocess", [None, "scale=1/255"])
@pytest.mark.parametrize("name", ["no.npz", "no_folder"])
def test_missing_data(tmp_path: Path, name: str, preprocess: str | None) -> None:
    error = refusal(tmp_path / name, X, preprocess=preprocess)
    assert (error.where, error.reason) == (str(tmp_path / name), "does not exist")


def test_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1")
    (tmp_path / "a.jpg").write_text("1")
    assert "kind of data" in refusal(tmp_path / "a.csv", X).reason
    assert "--preprocess" in refusal(tmp_path / "a.jpg", X).todo
    assert "is a list" in refusal({"x": [[0.0, 1.0]]}, X).reason
    assert "--preprocess" in refusal(npz(tmp_path, x=rows(1)), X, preprocess="ssd").reason


def test_model_without_inputs() -> None:
    with pytest.raises(QdqError, match="has no input"):
        open_loader([], [])


def test_arrays_in_memory_are_data_as_an_npz_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(3))
    stored = list(open_loader(tmp_path / "a.npz", (X,), DataOptions(batch=2)))
    for data in (rows(3), {"x": rows(3)}, np.load(tmp_path / "a.npz")):
        feed = open_loader(data, (X,), DataOptions(batch=2))
        assert (feed.samples, feed.once, feed.origin) == (3, False, None)
        for _ in range(2):  # walked again from the beginning
            assert [batch["x"].tobytes() for batch in feed] == [batch["x"].tobytes() for batch in stored]


def test_arrays_in_memory_that_do_not_fit() -> None:
    assert re.match("data: .*one array, .* 2 inputs", str(refusal(rows(1), X, replace(X, name="y"))))
    three = [replace(X, name=name) for name in "xyw"]
    assert re.search("'z' is not .* x, y, w$", str(refusal({"z": rows(1)}, *three)))
    assert "(x 1, y 2)" in str(refusal({"x": rows(1), "y": rows(2)}, X, replace(X, name="y")))
    assert "the array has [3]" in str(refusal(np.zeros(3, np.float32), X))
