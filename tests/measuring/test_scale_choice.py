# SPDX-License-Identifier: Apache-2.0
"""The choice per tensor: what readers feel decides, tied tensors take one, a tie that costs too much is cut."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import pytest

from qdqtool.amax.candidates import Candidate
from qdqtool.amax.histogram import Histogram
from qdqtool.data.loader import Batch
from qdqtool.decisions import Decisions
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions, explain
from qdqtool.match.planner import make_plan
from qdqtool.measuring.scale_choice import (
    CUT_GAIN,
    ChoiceSource,
    ScaleChoice,
    _PointClasses,
    choose,
    possible_requantize_points,
)
from qdqtool.measuring.shadow_losses import LayerError
from qdqtool.rulebook import load_rules
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from tests.graphs import model_of, points_of, readers_of, view_of

ALL = PlanOptions(float_heads="none")
CONV = "g (float[N,4,8,8] x) => (float[N,4,8,8] y) <float[4,4,1,1] w> { y = Conv(x, w) }"
SHUFFLE = """g (float[N,4,8,8] x) => (float[N,8,8,8] y)
  <float[4,4,1,1] w0, float[4,4,1,1] w1, float[4,4,1,1] w2, float[8,8,1,1] w4, int64[2] halves> {
  a = Conv(x, w0) b = Conv(x, w1) c = Concat<axis=1>(a, b)
  p, q = Split<axis=1>(c, halves) d = Conv(q, w2) e = Concat<axis=1>(p, d) y = Conv(e, w4) }"""
# Two blocks of a shuffle network: each passes half of its channels on and works on the other half.
TWO_SHUFFLES = """g (float[N,4,8,8] x) => (float[N,8,8,8] y)
  <float[4,4,1,1] w0, float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,4,1,1] w3, float[8,8,1,1] w4, int64[2] halves> {
  a = Conv(x, w0) b = Conv(x, w1) c = Concat<axis=1>(a, b)
  p, q = Split<axis=1>(c, halves) d = Conv(q, w2) e = Concat<axis=1>(p, d) y = Conv(e, w4) }"""


def put(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    next(t for t in model.graph.initializer if t.name == name).CopyFrom(onnx.numpy_helper.from_array(value, name))


def data_of(values: Iterable[np.ndarray]) -> list[Batch]:
    return [{"x": value.astype(np.float32)} for value in values]


def source_of(model: onnx.ModelProto, data: list[Batch]) -> ChoiceSource:
    activations = OrtActivations(Model(model))
    histograms = {name: Histogram() for name in activations.names}
    for batch in data:
        for name, array in activations.run(batch):
            histograms[name].add(array)
    return ChoiceSource(ObservableModel(Model(model)), data, histograms)


def wide(count: int = 4, seed: int = 0) -> list[np.ndarray]:
    """Long tails in every channel."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, 4, 8, 8)) ** 5 for _ in range(count)]


def shuffle_model(second: float = 1.0) -> onnx.ModelProto:
    """The second block's own branch is `second` times as large as what is passed on to it."""
    model = model_of(SHUFFLE)
    for name in ("w0", "w1", "w2"):
        put(model, name, np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1) * (second if name == "w2" else 1))
    put(model, "halves", np.array([4, 4], np.int64))
    mix = np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)
    put(model, "w4", mix)
    return model


def test_a_channel_that_its_reader_ignores_has_no_say() -> None:
    """Mean squared error of the tensor would keep the large channel; the reader multiplies it by nearly nothing."""
    rng = np.random.default_rng(1)
    values = [rng.standard_normal((1, 4, 8, 8)) * np.array([1, 1, 1, 40]).reshape(1, 4, 1, 1) for _ in range(4)]
    model = model_of(CONV)
    weight = np.eye(4, dtype=np.float32)
    put(model, "w", weight.reshape(4, 4, 1, 1))
    fair = choose(source_of(model, data_of(values)), ALL).taken["x"]
    weight[3, 3] = 0.001
    weight[3, 0] = 1.0
    put(model, "w", weight.reshape(4, 4, 1, 1))
    deaf = choose(source_of(model, data_of(values)), ALL).taken["x"]
    assert deaf.amax < fair.amax


def test_what_is_taken_has_the_least_loss_of_what_was_tried() -> None:
    choice = choose(source_of(model_of(CONV), data_of(wide())), ALL)
    tried = dict(choice.tried["x"])
    assert len(tried) > 3 and tried[choice.taken["x"]] == min(tried.values())
    assert choice.losses["y"] <= min(1.0, tried[choice.taken["x"]])


@pytest.mark.parametrize("text", [CONV, SHUFFLE])
def test_order_and_batch_change_nothing(text: str) -> None:
    model = model_of(CONV) if text == CONV else shuffle_model(5.0)
    data = data_of(wide(6))
    one = choose(source_of(model, data), ALL)
    source = source_of(model, [{"x": np.concatenate([d["x"] for d in reversed(data)])}])
    other = choose(ChoiceSource(ObservableModel(Model(model)), data, source.histograms), ALL)
    assert one == other


def test_tied_tensors_take_one_clipping_value_chosen_for_all() -> None:
    text = """g (float[N,4,8,8] x) => (float[N,4,8,8] y) <float[4,4,1,1] v, float[4,4,1,1] u, float[4,8,1,1] w>
              { a = Conv(x, v) b = Conv(x, u) c = Concat<axis=1>(a, b) y = Conv(c, w) }"""
    choice = choose(source_of(model_of(text), data_of(wide())), ALL)
    assert choice.taken["a"] == choice.taken["b"] and choice.tried["a"] == choice.tried["b"]
    assert choice.requantize_points == ()


def unlike() -> ScaleChoice:
    return choose(source_of(shuffle_model(200.0), data_of(wide())), ALL)


def test_a_tie_between_unlike_tensors_is_cut_and_one_between_alike_ones_is_not() -> None:
    """Where d is 200 times p, one scale would leave q, read by the block's own convolution, a fraction of a level."""
    assert unlike().requantize_points == ("p",)
    assert choose(source_of(shuffle_model(1.0), data_of(wide())), ALL).requantize_points == ()


def test_a_cut_gives_each_side_its_own_scale_and_fits_the_plan() -> None:
    choice = unlike()
    assert choice.taken["p"] == choice.taken["d"] and choice.taken["a"] == choice.taken["b"]
    assert choice.taken["d"].amax > 20 * choice.taken["a"].amax
    plan = make_plan(GraphView(shuffle_model().graph), ALL, decisions=Decisions(choice.requantize_points))
    assert {point.tensor for point in plan.activations} <= choice.taken.keys()


def test_cuts_may_be_forbidden_and_their_threshold_is_a_share() -> None:
    source = source_of(shuffle_model(200.0), data_of(wide()))
    forbidden = choose(source, ALL, cut=False)
    assert forbidden.requantize_points == () and "p" not in forbidden.taken
    assert sum(unlike().losses.values()) < (1 - CUT_GAIN) * sum(forbidden.losses.values())


def test_merged_classes_speak_with_one_voice() -> None:
    """Next to c the gain of b alone is 22 %, that of a and b together 33 %: a is merged with b first, then c is cut."""
    many, few = Histogram(), Histogram()
    many.add(np.linspace(-2, 2, 10_000, dtype=np.float32))
    few.add(np.full(1, 0.3, np.float32))
    classes = object.__new__(_PointClasses)
    classes.members = {"a": ["a"], "b": ["b"], "c": ["c"]}
    classes.edges = [("p", "a", "b"), ("q", "b", "c")]
    classes.grid = dict.fromkeys("abc", (Candidate("mse", np.float32(1)), Candidate("max", np.float32(2))))
    classes._known = {"a": many, "b": many, "c": many, "p": few, "q": few}
    costs = {"a": [0.05, 0.15], "b": [0.05, 0.15], "c": [0.6, 0.3]}
    together = classes.merge({name: np.array(cost) for name, cost in costs.items()})
    assert together.all() == [["a", "b"], ["c"]]
    classes.edges = [("q", "b", "c")]
    assert classes.merge({name: np.array(cost) for name, cost in costs.items()}).all() == [["a"], ["b", "c"]]


def test_a_reader_without_a_weight_is_heard_by_the_histogram() -> None:
    text = """g (float[N,4,8,8] x) => (float[N,4,1,1] y) <float[4,4,1,1] v, float[4,4,1,1] w>
              { a = Conv(x, v) m = GlobalAveragePool(a) y = Conv(m, w) }"""
    choice = choose(source_of(model_of(text), data_of(wide())), ALL)
    assert {"x", "a", "m"} <= choice.taken.keys()
    assert all(loss > 0 for _, loss in choice.tried["a"])


def test_a_float_head_that_reads_int8_is_heard_too() -> None:
    text = """g (float[N,4,8,8] x) => (float[N,4,8,8] y, float[N,4,8,8] z)
              <float[4,4,1,1] v, float[4,4,1,1] w> { y = Conv(x, v) s = Conv(x, w) z = Sigmoid(s) }"""
    choice = choose(source_of(model_of(text), data_of(wide())), PlanOptions(float_heads="regression"))
    assert set(choice.losses) == {"y", "s"}


def test_an_operator_whose_sums_overflow_is_not_asked() -> None:
    ones = np.ones(2)
    assert LayerError(ones, ones, 2.0).is_valid and not LayerError(ones, ones, 0.0).is_valid
    for felt in (
        LayerError(ones * np.inf, ones, 2.0),
        LayerError(ones, ones, float("inf")),
        LayerError(ones, ones * np.nan, 1.0),
    ):
        assert not felt.is_valid
    huge = [np.full((1, 4, 8, 8), 3e38) * np.sign(value) for value in wide(2)]
    with np.errstate(all="ignore"):
        choice = choose(source_of(model_of(CONV), data_of(huge)), ALL)
    assert choice.losses == {} and "x" in choice.taken


def test_an_operator_that_has_nothing_to_lose_is_known_to_lose_nothing() -> None:
    """A branch whose weights are zeros: a search that follows must not run the model again to learn of it."""
    text = """g (float[N,4,8,8] x) => (float[N,4,8,8] y) <float[4,4,1,1] v, float[4,4,1,1] w>
              { a = Conv(x, v) b = Conv(x, w) y = Add(a, b) }"""
    model = model_of(text)
    put(model, "w", np.zeros((4, 4, 1, 1), np.float32))
    choice = choose(source_of(model, data_of(wide())), ALL)
    assert choice.local["b"][1] == 0.0 < choice.local["a"][1]


def test_a_dead_tensor_has_no_candidate() -> None:
    text = """g (float[N,4,8,8] x) => (float[N,4,8,8] y) <float[4,4,1,1] v, float[4,4,1,1] w>
              { z = Sub(x, x) a = Conv(x, v) b = Conv(z, w) y = Add(a, b) }"""
    choice = choose(source_of(model_of(text), data_of(wide())), ALL)
    assert "z" not in choice.taken and "x" in choice.taken


def cuts_of(text: str) -> list[str]:
    return possible_requantize_points(view_of(text), load_rules("gpu"))


def plan_with(text: str, **more: object) -> Plan:
    return make_plan(GraphView(model_of(text).graph), PlanOptions(float_heads="none"), **more)  # type: ignore[arg-type]


def test_what_a_shuffle_passes_on_may_be_cut() -> None:
    assert cuts_of(TWO_SHUFFLES) == ["p"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = Conv(e, w4)", "y = Conv(e, w4) z = Conv(p, w3)"),  # an INT8 operator reads it too
        ("e = Concat<axis=1>(p, d)", "r = Relu(p) e = Concat<axis=1>(r, d)"),  # its values are changed on the way
        ("p, q = Split<axis=1>(c, halves)", "p = Relu(a) q = Relu(b)"),  # a group makes it: it has a point anyway
    ],
)
def test_elsewhere_there_is_nothing_to_cut(old: str, new: str) -> None:
    assert cuts_of(TWO_SHUFFLES.replace(old, new)) == []


def test_an_output_of_the_model_is_not_cut() -> None:
    assert cuts_of(TWO_SHUFFLES.replace("float[N,8,8,8] y)", "float[N,8,8,8] y, float[N,4,8,8] p)")) == []


def test_a_concat_of_a_concat_is_not_cut() -> None:
    text = TWO_SHUFFLES.replace("p, q = Split<axis=1>(c, halves)", "q = Relu(b)").replace("(p, d)", "(c, d)")
    assert cuts_of(text.replace("w4, int64[2] halves", "w4").replace("float[8,8,1,1]", "float[8,12,1,1]")) == []


def test_without_a_cut_both_blocks_share_one_scale() -> None:
    plan = plan_with(TWO_SHUFFLES)
    assert {point.tensor for point in plan.activations} == {"x", "a", "b", "d"}
    assert plan.shared_scales()["a"] == ["a", "b", "d"]


def test_a_cut_tensor_has_a_pair_and_a_scale_shared_with_what_it_is_joined_with() -> None:
    plan = plan_with(TWO_SHUFFLES, decisions=Decisions(("p",)))
    assert plan.shared_scales()["a"] == ["a", "b"] and sorted(plan.shared_scales()["p"]) == ["d", "p"]
    assert readers_of(plan, "p") == {("e", 0)} and readers_of(plan, "a") == {("c", 0)}


def test_a_cut_that_the_graph_lacks_changes_nothing() -> None:
    assert plan_with(TWO_SHUFFLES, decisions=Decisions(("nowhere",))).points == plan_with(TWO_SHUFFLES).points
    assert points_of(TWO_SHUFFLES) == {"x", "a", "b", "d"}


def test_a_kept_operator_is_float_and_says_why() -> None:
    plan = plan_with(TWO_SHUFFLES, decisions=Decisions(float_layers={"d": "it costs too much"}))
    assert "d" in plan.float_nodes and not any(read.node == "d" for p in plan.weights for read in p.reads)
    refusal = next(one for one in plan.refusals if one.site == "d")
    assert (refusal.rule, refusal.reason) == ("keep-float", "it costs too much")
    assert any(
        line.startswith("d: ") and line.endswith(f"rule keep-float: {refusal.reason}") for line in explain(plan, "d")
    )


def test_a_kept_operator_comes_on_top_of_float_heads() -> None:
    view = GraphView(model_of(TWO_SHUFFLES).graph)
    plan = make_plan(view, PlanOptions(float_heads="all"), decisions=Decisions(float_layers={"d": "why"}))
    assert set(plan.float_nodes) == {"d", "y"}
    assert {one.rule for one in plan.refusals} == {"float-head", "keep-float"}
