# SPDX-License-Identifier: Apache-2.0
"""Which tensors two models share, whether one batch fits both, and what has no distance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError
from qdqtool.measures import MeasureSums
from qdqtool.simulation.side_by_side import check_same_inputs, measure, read_tensors, shared_tensors, stricter
from tests.graphs import view_of

PLAIN = "g (float[2] x) => (float[2] y) { a = Neg(x)  b = Abs(a)  y = Relu(b) }"
PAIRS = """g (float[2] x) => (float[2] y) <float k = {0.1}, int8 z = {0}> {
    a = Neg(x)  q = QuantizeLinear(a, k, z)  d = DequantizeLinear(q, k, z)  other = Abs(d)  y = Relu(other)
}"""


def test_by_name_with_pairs_seen_through() -> None:
    shared = shared_tensors(view_of(PLAIN), view_of(PAIRS))
    assert (shared.both, shared.first, shared.second) == (("a", "y"), ("b",), ("other",))


@pytest.mark.parametrize(("wanted", "both"), [("outputs", ("y",)), ("^a$", ("a",)), ("a|y", ("a", "y"))])
def test_wanted_only(wanted: str, both: tuple[str, ...]) -> None:
    assert shared_tensors(view_of(PLAIN), view_of(PAIRS), wanted).both == both


@pytest.mark.parametrize(("wanted", "message"), [("(", "not a regular expression"), ("zzz", "share no tensor's name")])
def test_what_is_wanted_must_be_there(wanted: str, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        shared_tensors(view_of(PLAIN), view_of(PAIRS), wanted)


def test_what_readers_see() -> None:
    plain, pairs = view_of(PLAIN), view_of(PAIRS)
    assert read_tensors(plain, pairs, ["x", "a", "y"]) == {"a": ("a", "d")}
    assert read_tensors(pairs, pairs, ["a"]) == {"a": ("d", "d")}


def one(name: str = "x", shape: Any = ("n", 3), dtype: str = "float32") -> Input:
    return Input(name, shape, np.dtype(dtype))


@pytest.mark.parametrize("other", [one(), one(shape=(4, 3)), one(shape=("m", None)), one(shape=None)])
def test_inputs_that_agree(other: Input) -> None:
    check_same_inputs([one()], [other], ("a", "b"))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (one(name="z"), "b: has no input 'x', which a has"),
        (one(dtype="float16"), "b: its input 'x' is float16, in a float32"),
        (one(shape=("n", 4)), r"b: its input 'x' is \[n, 4\], in a \[n, 3\]"),
        (one(shape=("n", 3, 1)), "its input 'x' is"),
    ],
)
def test_inputs_that_do_not(other: Input, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        check_same_inputs([one()], [other], ("a", "b"))


def test_an_input_too_many_is_that_of_the_other_model() -> None:
    with pytest.raises(QdqError, match=r"a: .*'z'.* b "):
        check_same_inputs([one()], [one(), one("z")], ("a", "b"))


def test_the_stricter_shape_of_both() -> None:
    assert stricter([one(shape=("n", 3))], [one(shape=(4, None))])[0].shape == (4, 3)
    assert stricter([one(shape=None)], [one()])[0].shape == ("n", 3)
    assert stricter([one()], [one(shape=None)])[0].shape == ("n", 3)


class FixedArrays:
    """Gives the same arrays for every batch, `size` of them at a time."""

    def __init__(self, size: int = 9, **arrays: Any) -> None:
        self.arrays = {name: np.asarray(array) for name, array in arrays.items()}
        self.size, self.given = size, 0

    def parts(self, feed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for first in range(0, len(self.arrays), self.size):
            self.given = first + self.size
            yield dict(list(self.arrays.items())[first : self.given])


def test_what_has_no_distance_is_named_and_the_rest_is_measured() -> None:
    ours = FixedArrays(i=np.ones(2, int), s=np.ones((1, 2)), e=np.ones((0, 2)), f=np.ones((1, 2), np.float16))
    theirs = FixedArrays(i=np.ones(2, int), s=np.ones((2, 2)), e=np.ones((0, 2)), f=np.zeros((1, 2), np.float16))
    seen: list[Any] = []
    found = measure((ours, theirs), {n: (n, n) for n in "isef"}, [(1, {}), (2, {})], seen.append)
    assert found.uncompared == {"i": "of type int64", "s": "of shape [1, 2] and [2, 2]", "e": "has no elements"}
    assert list(found.measures) == ["f"]
    assert (found.measures["f"].sqnr, found.measures["f"].elements, found.samples) == (0.0, 4, 3)
    assert [list(given) for given in seen] == [["i", "s", "e", "f"]] * 2


@pytest.mark.parametrize(("size", "other"), [(1, 1), (1, 3), (2, 1), (3, 2), (9, 9)])
def test_tensors_are_measured_as_soon_as_both_models_have_given_them(
    size: int, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other model has more tensors, and one of them stands elsewhere."""
    rng = np.random.default_rng(0)
    ours = {name: rng.normal(size=(1, 4)) for name in "abcdef"}
    theirs = {name: ours.get(name, 0) + rng.normal(size=(1, 4)) / 8 for name in "axbyecdf"}
    names = {**{name: (name, name) for name in "abcdef"}, "a read": ("a", "x")}
    runs = FixedArrays(size, **ours), FixedArrays(other, **theirs)
    far: dict[str, tuple[int, int]] = {}
    real = MeasureSums.add

    def add(sums: MeasureSums, one: Any, two: Any, count: int) -> None:
        far[next(name for name, array in ours.items() if array.tobytes() == one.tobytes())] = (
            runs[0].given,
            runs[1].given,
        )
        real(sums, one, two, count)

    monkeypatch.setattr(MeasureSums, "add", add)
    found = measure(runs, names, [(1, {}), (1, {})])
    assert set(found.measures) == set(names) and found.samples == 2
    for name, one in found.measures.items():
        sums = MeasureSums()
        for _ in range(2):
            real(sums, ours[names[name][0]], theirs[names[name][1]], 1)
        assert one == sums.measure(name)
    for index, name in enumerate("abcdef"):
        assert far[name][0] == size * (index // size + 1), "no stage of the reference runs before it must"
        most = max(list(theirs).index(names[one][1]) for one in names if list(ours).index(names[one][0]) < far[name][0])
        assert far[name][1] == other * (most // other + 1), "nor one of the other model"


def test_types_that_differ() -> None:
    found = measure((FixedArrays(a=np.ones(1)), FixedArrays(a=np.ones(1, np.int8))), {"a": ("a", "a")}, [(1, {})])
    assert found.uncompared == {"a": "of type float64 and int8"}
