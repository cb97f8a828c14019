# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Fitted weights: where channels repeat others nothing is lost, whoever sums them up, and earlier losses are generated."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import PruneOptions, PruneResult, prune
from qdqtool.graph.model import Model
from qdqtool.pruning import reconstruction
from qdqtool.pruning.check import relative_difference
from qdqtool.pruning.cut import Cut
from qdqtool.runtime.executor import Executor
from tests.graphs import model_of
from tests.pruning.nets import value, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

DATA, TEST = (
    {"x": np.random.default_rng(seed).normal(size=(count, 3, 6, 6)).astype(np.float32)}
    for seed, count in ((1, 40), (2, 8))
)
HALF = PruneOptions(ratio=0.5)

# Channels 4 to 7 of a are 0.5 times channels 0 to 3: they are worth least, and those that stay say what they said.
CASES = {
    "conv": ("float[N,5,6,6] y", "float[5,8,3,3] u, float[5] c", "y = Conv<pads=[1,1,1,1]>(a, u, c)"),
    "conv without bias": ("float[N,5,3,3] y", "float[5,8,3,3] u", "y = Conv<pads=[1,1,1,1], strides=[2,2]>(a, u)"),
    "grouped": ("float[N,4,6,6] y", "float[4,4,1,1] u", "y = Conv<group=2>(a, u)"),
    "gemm": ("float[N,5] y", "float[8,5] u, float[5] c", "p = GlobalAveragePool(a)  f = Flatten(p)  y = Gemm(f, u, c)"),
    "gemm transposed": ("float[N,5] y", "float[5,8] u", "p = GlobalAveragePool(a)  f = Flatten(p)  y = Gemm<transB=1>(f, u)"),
    "matmul of rows that are no samples": ("float[M,5] y", "float[8,5] u, int64[2] rows = {-1,8}", "t = Transpose<perm=[0,2,3,1]>(a)  f = Reshape(t, rows)  y = MatMul(f, u)"),
    "matmul": ("float[N,6,6,5] y", "float[8,5] u", "t = Transpose<perm=[0,2,3,1]>(a)  y = MatMul(t, u)"),
}  # fmt: skip


def net(name: str) -> onnx.ModelProto:
    outputs, constants, nodes = CASES[name]
    model = model_of(
        f"g (float[N,3,6,6] x) => ({outputs}) <float[8,3,1,1] w, {constants}> {{ a = Conv(x, w)  {nodes} }}"
    )
    random = np.random.default_rng(3)
    half = random.normal(size=(4, 3, 1, 1))
    half /= np.sqrt(np.square(half).sum(axis=1, keepdims=True))
    order = [0, 4, 1, 5, 2, 6, 3, 7] if name == "grouped" else range(8)  # each group has two that stay
    weights = {one.name: random.normal(size=one.dims) for one in model.graph.initializer if one.name in "uc"}
    return with_values(model, w=np.concatenate([half, 0.5 * half])[list(order)], **weights)


def drawn(model: onnx.ModelProto) -> onnx.ModelProto:
    random = np.random.default_rng(4)
    floats = [one for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT]
    return with_values(model, **{one.name: random.normal(size=one.dims) for one in floats})


def lost(model: onnx.ModelProto, result: PruneResult[onnx.ModelProto]) -> float:
    (name,) = (one.name for one in model.graph.output)
    return relative_difference(Executor(Model(model)).run(TEST)[name], Executor(Model(result.model)).run(TEST)[name])


@pytest.mark.parametrize("name", CASES)
def test_channels_that_repeat_others_go_without_a_trace(name: str) -> None:
    model = net(name)
    result = prune(model, DATA, HALF)
    assert result.done.reconstructed == ("y",) and result.done.corrected == ()
    assert "1 operator are fitted" in str(result)
    assert lost(model, result) < 5e-3 < 0.05 < lost(model, prune(model, DATA, PruneOptions(ratio=0.5, correct=False)))


def test_the_fitted_weight_by_hand() -> None:
    """Channel 1 is twice channel 0, which stays alone: y = (u0 + u1 / 2) a0, whichever of the two that is."""
    model = model_of(
        "g (float[N,3,6,6] x) => (float[N,1,6,6] y) <float[2,3,1,1] w, float[1,2,1,1] u> { a = Conv(x, w)  y = Conv(a, u) }"
    )
    first = np.array([1.0, -2.0, 0.5]).reshape(1, 3, 1, 1)
    model = with_values(model, w=np.concatenate([first, 2 * first]), u=np.array([[[[3.0]], [[5.0]]]]))
    pruned = prune(model, DATA, HALF).model
    assert value(pruned, "w") == pytest.approx(2 * first) and value(pruned, "u").item() == pytest.approx(6.5, rel=2e-3)


CHAIN = "g (float[N,3,6,6] x) => (float[N,2,6,6] y) <float[8,3,1,1] w, float[8,8,1,1] v, float[2,8,1,1] u> { a = Conv(x, w)  r = Relu(a)  b = Conv(r, v)  s = Relu(b)  y = Conv(s, u) }"


def test_later_operators_make_up_for_what_earlier_ones_lost() -> None:
    model = model_of(CHAIN)
    model = drawn(model)
    result = prune(model, DATA, HALF)
    (judged,) = result.done.judged
    assert set(result.done.reconstructed) == {"b", "y"} and judged.reconstructed > judged.corrected + 2
    assert lost(model, result) < lost(model, prune(model, DATA, PruneOptions(ratio=0.5, correct=False)))
    assert result.done.difference is not None and result.done.difference.outputs < 1e-5


def test_what_reads_the_values_of_the_original_keeps_its_weights() -> None:
    """The second branch lies after nothing that lost channels."""
    model = drawn(
        model_of(
            "g (float[N,3,6,6] x) => (float[N,2,6,6] y) <float[8,3,1,1] w, float[2,8,1,1] u, float[2,3,1,1] v> { a = Conv(x, w)  r = Relu(a)  b = Conv(r, u)  c = Conv(x, v)  y = Sub(b, c) }"
        )
    )
    result = prune(model, DATA, HALF)
    assert result.done.reconstructed == ("b",) and np.array_equal(value(result.model, "v"), value(model, "v"))


SKIP = "g (float[N,3,6,6] x) => (float[N,4,6,6] y) <float[8,3,1,1] w, float[8,4,1,1] p, float[4,8,1,1] u, float[4] g, float[4] b, float[4] m, float[4] q> { a = Conv(x, w)  r = Relu(a)  k = ConvTranspose(r, p)  d = Conv(r, u)  n = BatchNormalization(d, g, b, m, q)  y = Add(n, k) }"


def test_the_target_before_an_add_makes_up_for_the_other_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a ConvTranspose stay: d is fitted to what k lost as well, in units of what the normalization makes of it."""
    model = with_values(drawn(model_of(SKIP)), g=np.array([0.5, 2, -1, 1]), q=np.array([1.0, 2, 3, 4]))
    result = prune(model, DATA, HALF)
    assert result.done.reconstructed == ("d",)
    monkeypatch.setattr(reconstruction, "_with_skip", lambda _, fit, __: fit)
    without = prune(model, DATA, HALF)
    assert without.done.reconstructed == ("d",)
    assert result.done.judged[0].reconstructed > without.done.judged[0].reconstructed + 1


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ("k = Exp(g)  n = BatchNormalization(d, k, b, m, q)  y = Add(n, t)", "the factor is computed"),
        ("n = BatchNormalization(d, tiny, b, m, q)  y = Add(n, t)", "next to nothing of it is left"),
        ("y = Mul(d, t)", "it is no Add"),
        ("y = Add(d, g4)", "the other operand is a constant"),
        ("y = Add(d, d)", "it is read twice"),
    ],
)
def test_the_target_is_the_operators_own_where_an_add_says_nothing_of_it(
    nodes: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"g (float[N,3,6,6] x) => (float[N,4,6,6] y) <float[8,3,1,1] w, float[8,4,1,1] p, float[4,8,1,1] u, float[4] g, float[4] tiny, float[1,4,1,1] g4, float[4] b, float[4] m, float[4] q> {{ a = Conv(x, w)  r = Relu(a)  t = ConvTranspose(r, p)  d = Conv(r, u)  {nodes} }}"
    model = with_values(drawn(model_of(text)), q=np.array([1.0, 2, 3, 4]), tiny=np.full(4, 1e-9))
    found = []
    skip = reconstruction._with_skip
    monkeypatch.setattr(reconstruction, "_with_skip", lambda *given: found.append(skip(*given)) or found[-1])
    prune(model, DATA, HALF)
    assert [(one.node.name, one.skip) for one in found] == [("d", "")], why


def test_an_operand_that_is_fitted_later_is_no_part_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two convolutions before an Add the second makes up for both; ways that meet again are walked once."""
    model = drawn(
        model_of(
            "g (float[N,3,6,6] x) => (float[N,4,6,6] y) <float[8,3,1,1] w, float[4,8,1,1] u, float[4,8,1,1] v> { a = Conv(x, w)  r = Relu(a)  s = Sigmoid(r)  t = Mul(r, s)  b = Conv(t, u)  c = Conv(t, v)  y = Add(b, c) }"
        )
    )
    result = prune(model, DATA, HALF)
    assert set(result.done.reconstructed) == {"b", "c"}
    found: dict[str, str] = {}
    skip = reconstruction._with_skip

    def noted(cut: Cut, fit: reconstruction._Fit, moving: set[str]) -> reconstruction._Fit:
        made = skip(cut, fit, moving)
        found[fit.node.name] = made.skip
        return made

    monkeypatch.setattr(reconstruction, "_with_skip", noted)
    prune(model, DATA, HALF)
    assert found == {"b": "", "c": "b"}


@pytest.mark.parametrize(
    "nodes",
    [
        "k = Identity(u)  y = Conv(a, k)",
        "q = QuantizeLinear<axis=0>(u, s, z)  k = DequantizeLinear<axis=0>(q, s, z)  y = Conv(a, k)",
        "b = Conv(a, u)  c = Conv(a, u)  y = Mul(b, c)",
    ],
)
def test_weights_that_are_not_an_operators_own_stay(nodes: str) -> None:
    model = model_of(
        f"g (float[N,3,6,6] x) => (float[N,2,6,6] y) <float[8,3,1,1] w, float[2,8,1,1] u, float[2] s = {{0.1, 0.1}}, int8[2] z = {{0, 0}}> {{ a = Conv(x, w)  {nodes} }}"
    )
    model = with_values(model, u=np.random.default_rng(6).normal(size=(2, 8, 1, 1)))
    result = prune(model, DATA, HALF)
    assert result.done.reconstructed == ()
    left = value(result.model, "u")
    assert left.shape == (2, 4, 1, 1) and set(left.reshape(-1).tolist()) <= set(value(model, "u").reshape(-1).tolist())


def test_pictures_of_several_sizes() -> None:
    """Free axes: each batch has its own places."""
    model = model_of(
        "g (float[N,3,H,V] x) => (float[N,5,H,V] y) <float[8,3,1,1] w, float[5,8,3,3] u> { a = Conv(x, w)  y = Conv<pads=[1,1,1,1]>(a, u) }"
    )
    random = np.random.default_rng(5)
    batches = [{"x": random.normal(size=(2, 3, side, side + 1)).astype(np.float32)} for side in (4, 6, 5, 7, 6, 5)]
    result = prune(drawn(model), batches, HALF)
    assert result.done.reconstructed == ("y",)
    assert result.done.judged[0].reconstructed > result.done.judged[0].plain + 3


def test_few_runs_for_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where runs are dear, several operators are fitted on one: with what the first of them had as its input."""
    model = drawn(model_of(CHAIN))
    one_by_one = prune(model, DATA, HALF).done
    monkeypatch.setattr(reconstruction, "_BUDGET", 0)
    monkeypatch.setattr(reconstruction, "_LEAST_WAVES", 1)
    monkeypatch.setattr(reconstruction, "_STORED", 1)
    at_once = prune(model, DATA, HALF).done
    assert one_by_one.judged[0].reconstructed > at_once.judged[0].reconstructed > at_once.judged[0].plain


@pytest.mark.parametrize("batch", [1, 4, 40])
def test_what_a_run_costs_does_not_depend_on_how_samples_are_grouped(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget suffices for one operator at a time, but not where each sample would cost what its batch does."""
    model, waves = drawn(model_of(CHAIN)), []
    solved = reconstruction._solved
    monkeypatch.setattr(reconstruction, "_solved", lambda *given: waves.append(len(given[1])) or solved(*given))
    monkeypatch.setattr(reconstruction, "_LEAST_WAVES", 1)
    prune(model, DATA, HALF)
    count, cost = sum(waves), prune(model, options=HALF).done.multiply_adds[1]  # a seeded input is one sample
    waves.clear()
    monkeypatch.setattr(reconstruction, "_BUDGET", count * cost * 32 // 2)  # 40 samples, every fifth is held out
    given = [{"x": part} for part in np.split(DATA["x"], 40 // batch)]
    prune(model, given, HALF)
    assert waves == [1] * count and count > 1


def test_the_first_samples_count_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "_SAMPLES", 10)
    few = prune(net("conv"), DATA, HALF)
    monkeypatch.undo()
    assert few.done.reconstructed == ("y",)
    assert few.model != prune(net("conv"), DATA, HALF).model


def test_rows_with_more_weights_than_can_be_solved_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "_LARGEST", 35)
    done = prune(net("conv"), DATA, HALF).done
    assert done.reconstructed == () and done.corrected in ((), ("y",))


def test_the_same_data_give_the_same_bytes() -> None:
    model = net("conv")
    first, again = (prune(model, DATA, HALF).model.SerializeToString(deterministic=True) for _ in range(2))
    assert first == again


def test_a_weight_that_two_operators_read_stays() -> None:
    model = model_of(
        "g (float[N,3,6,6] x, float[N,3,6,6] z) => (float[N,2,6,6] y, float[N,2,6,6] o) <float[8,3,1,1] w, float[2,8,1,1] u> { a = Conv(x, w)  y = Conv(a, u)  b = Conv(z, w)  o = Conv(b, u) }"
    )
    model = drawn(model)
    assert prune(model, {**DATA, "z": DATA["x"]}, HALF).done.reconstructed == ()


def test_quantized_weights_stay_on_their_grid() -> None:
    model = drawn(
        model_of(
            "g (float[N,3,6,6] x) => (float[N,2,6,6] y) <float[8,3,1,1] w, float[2,8,1,1] u, float us = {0.02}, int8 uz = {0}> { a = Conv(x, w)  uq = QuantizeLinear(u, us, uz)  ud = DequantizeLinear(uq, us, uz)  y = Conv(a, ud) }"
        )
    )
    model = with_values(model, us=np.array(0.02))
    result = prune(model, DATA, HALF)
    assert result.done.reconstructed == () and value(result.model, "u").shape == (2, 4, 1, 1)
    assert np.isin(value(result.model, "u"), value(model, "u")).all()
