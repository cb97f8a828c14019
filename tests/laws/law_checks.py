# SPDX-License-Identifier: Apache-2.0
"""The laws of design.md as functions that assert, for random graphs and for real models. No models, no tests here."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, settings
from onnx import TensorProto

import qdqtool as verbs
from qdqtool.graph.io import open_model, serialize
from qdqtool.graph.model_bytes import whole_model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan
from qdqtool.match.planner import make_plan
from qdqtool.scales import Scale, ScaleTable
from qdqtool.trtversion import TrtVersion

PAIR = ("QuantizeLinear", "DequantizeLinear")
V8_6 = TrtVersion(8, 6, 1)
# Some random networks have nothing to quantize, and the laws hold for them all the same.
ANY = verbs.InsertOptions(allow_empty=True)
_KINDS = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(float16)": np.float16,
}
_FEW = {
    "cifar_resnet20_bn",
    "fastestdet_coco",
    "mlperf_vww_fp32",
    "mnist8",
    "ultraface_slim320",
}


def examples(count: int) -> settings:
    """The same networks in each run: so many, or as many as QDQTOOL_EXAMPLES says."""
    return settings(
        max_examples=int(os.environ.get("QDQTOOL_EXAMPLES", count)),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def lifted(model: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """normalize(m), with all weights in memory."""
    opened = open_model(model)
    normalize(opened)
    return whole_model(opened.proto)


def table_for(plan: Plan, first: float = 0.01) -> ScaleTable:
    """Another scale, in float32, for every activation point."""
    return ScaleTable({p.tensor: Scale.of(first * (1 + i % 37 / 8)) for i, p in enumerate(plan.activations)})


def same(one: onnx.ModelProto | Path, other: onnx.ModelProto | Path) -> bool:
    """Equality of models: of their deterministically serialized bytes."""
    return _bytes_of(one) == _bytes_of(other)


def _bytes_of(model: onnx.ModelProto | Path) -> bytes:
    return model.read_bytes() if isinstance(model, Path) else serialize(model)


# ---------------------------------------------------------------------- L1, L2, L7


def check_peel_undoes_insert(model: Path | onnx.ModelProto, done: verbs.InsertResult, folder: Path) -> None:
    """L1, without and with the source; and the cache holds the bits of every point."""
    if not done.plan.points:
        return
    options = verbs.PeelOptions(V8_6)
    peeled = verbs.peel(done.model, options, **_outputs(model, folder, "peeled"))
    assert same(peeled.model, lifted(model)), "peel(insert(m)) is not normalize(m)"
    with_source = verbs.PeelOptions(V8_6, source=model)
    restored = verbs.peel(done.model, with_source, **_outputs(model, folder, "restored"))
    assert same(restored.model, model), "peel --source is not the source"
    for result in (peeled, restored):
        for name, scale in done.inserted.scales.items():
            assert result.table[name].same_bits(scale), name
            assert result.cache.entries[name].tobytes() == scale.bits.tobytes(), name


def _outputs(model: Path | onnx.ModelProto, folder: Path, name: str) -> dict[str, Path]:
    if isinstance(model, onnx.ModelProto):
        return {}
    return {"output": folder / f"{name}.onnx", "cache": folder / f"{name}.cache"}


def check_insert_is_idempotent(done: verbs.InsertResult, table: ScaleTable, folder: Path) -> None:
    """L2: with the same scales, and with none at all since every point has its pair."""
    for scales in (table, ScaleTable()):
        output = folder / "again.onnx" if isinstance(done.model, Path) else None
        again = verbs.insert(done.model, scales=scales, options=ANY, output=output)
        assert not again.inserted.added, [point.tensor for point in again.inserted.added][:5]
        assert same(again.model, done.model)


def check_order_of_nodes_is_nothing(proto: onnx.ModelProto, folder: Path | None, seeds: Iterable[int] = (1,)) -> None:
    """L7: the plan of a graph and of the same graph with its nodes in another order."""
    plan = _as_sets(make_plan(GraphView(proto.graph, folder)))
    for seed in seeds:
        mixed = onnx.ModelProto()
        mixed.CopyFrom(proto)
        nodes = list(mixed.graph.node)
        random.Random(seed).shuffle(nodes)
        del mixed.graph.node[:]
        mixed.graph.node.extend(nodes)
        other = _as_sets(make_plan(GraphView(mixed.graph, folder)))
        for name, decided in plan.items():
            assert decided == other[name], f"{name} depend on the order of the nodes (seed {seed})"


def _as_sets(plan: Plan) -> dict[str, set[Any]]:
    return {
        "points": set(plan.points),
        "refusals": set(plan.refusals),
        "heads": {(h.key, h.label, frozenset(h.outputs)) for h in plan.heads},
        "float nodes": set(plan.float_nodes),
        "groups": {(g.rule, tuple(n.key for n in g.nodes), g.output) for g in plan.groups},
    }


# ---------------------------------------------------------------------- L9


def checker_complaint(model: onnx.ModelProto | Path) -> str:
    """What onnx.checker with full_check says of a model; "" for nothing."""
    try:
        onnx.checker.check_model(str(model) if isinstance(model, Path) else model, full_check=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def runtime_complaint(model: onnx.ModelProto | Path) -> str:
    """What onnxruntime says of a model when it makes a session; "" for nothing."""
    try:
        session_of(model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def check_no_new_complaint(before: onnx.ModelProto | Path, after: onnx.ModelProto | Path) -> None:
    """L9: where the input was fine, the output is."""
    for complaint in (checker_complaint, runtime_complaint):
        said = complaint(after)
        assert not said or complaint(before), said


# ---------------------------------------------------------------------- L10


def session_of(model: onnx.ModelProto | Path, outputs: Iterable[str] = (), folder: Path | None = None) -> Any:
    """The reference executor; `outputs` are given out beside the model's own, `folder` holds its external data."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    source: Any = str(model) if isinstance(model, Path) else model
    if isinstance(source, onnx.ModelProto):
        shown = onnx.ModelProto()
        shown.CopyFrom(source)
        shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        source = shown.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def few_at_once(files: Iterable[Path]) -> list[Any]:
    """Parameters for trained networks: a few of every kind as they are, the others left to the slow suite."""
    return [file if file.stem in _FEW else pytest.param(file, marks=pytest.mark.slow) for file in files]


def check_nobody_complains(model: onnx.ModelProto, made: onnx.ModelProto) -> None:
    """L9 for a model that onnx.checker has nothing against."""
    check_no_new_complaint(model, made)
    assert checker_complaint(made) == ""


def check_every_point_but_rounds(model: onnx.ModelProto, place: Callable[[onnx.ModelProto], Any], seed: int) -> None:
    """L10 at every point, after the names of the nodes are taken away: onnxruntime refuses equal ones."""
    pytest.importorskip("onnxruntime")
    for node in model.graph.node:
        node.ClearField("name")
    done = place(model)
    assert check_nothing_but_rounding(lifted(model), done.model, seed=seed) == len(done.plan.activations)


def inputs_for(session: Any, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Seeded values for every input: normal floats, 0 or 1 for integers (ids, types and masks alike), 0.5 for a number.

    What the model leaves open is small: one sample, maps of 64 by 64, series of 512 values, texts of 8 words.
    """
    values = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for item in session.get_inputs():
        kind, rank = np.dtype(_KINDS[item.type]), len(item.shape)
        series = 512 if kind.kind == "f" else 8
        free = (1, series if rank == 2 else 1, 64, 64, 8, 8)
        shape = [size if isinstance(size, int) else free[axis] for axis, size in enumerate(item.shape)]
        whole = values.integers(0, 2, shape) if kind.kind in "iub" else values.standard_normal(shape)
        feeds[item.name] = np.asarray(0.5 if kind.kind == "f" and not shape else whole).astype(kind)
    return feeds


def as_identity(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with both nodes of each Q/DQ pair turned into Identity."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type in PAIR:
            del node.input[1:], node.attribute[:]
            node.op_type = "Identity"
    known = {value.name for value in copy.graph.value_info}
    assert not known & {name for node in model.graph.node if node.op_type in PAIR for name in node.output}
    return copy


def check_nothing_but_rounding(
    plain: onnx.ModelProto, quantized: onnx.ModelProto, folder: Path | None = None, seed: int = 0
) -> int:
    """L10: without its rounding the Q/DQ model computes the plain one's bits, and each pair rounds by half a step.

    Returns:
        How many pairs on activations were looked at.
    """
    session = session_of(plain, folder=folder)
    feeds = inputs_for(session, seed=seed)
    expected = session.run(None, feeds)
    got = session_of(as_identity(quantized), folder=folder).run(None, feeds)
    for value, one, other in zip(session.get_outputs(), expected, got, strict=True):
        same_bits = one == other if isinstance(one, list) else one.tobytes() == other.tobytes()
        assert same_bits, f"{value.name} differs where nothing is rounded"
    return _check_half_steps(quantized, feeds, folder)


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _check_half_steps(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray[Any, Any]], folder: Path | None) -> int:
    """|dq(q(x)) - x| <= scale / 2 where -128.5 <= x / scale <= 127.5, with one unit in the last place of x to spare."""
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if not _is_external(t)}
    constant = {t.name for t in model.graph.initializer} | {
        node.output[0] for node in model.graph.node if node.op_type == "Constant"
    }
    behind = {node.input[0]: node.output[0] for node in model.graph.node if node.op_type == PAIR[1]}
    given_out = {value.name for value in model.graph.output}
    taken = {value.name for value in model.graph.input}
    sites = [
        (node.input[0], behind[node.output[0]], stored[node.input[1]])
        for node in model.graph.node
        if node.op_type == PAIR[0] and node.input[0] not in constant and stored[node.input[1]].ndim == 0
    ]
    wanted = [name for name in dict.fromkeys(n for site in sites for n in site[:2]) if name not in given_out | taken]
    session = session_of(model, wanted, folder)
    values = dict(zip((o.name for o in session.get_outputs()), session.run(None, dict(feeds)), strict=True))
    values.update(feeds)
    for tensor, rounded, scale in sites:
        x, y = values[tensor].astype(np.float64), values[rounded].astype(np.float64)
        inside = (x >= -128.5 * scale) & (x <= 127.5 * scale)
        error = np.abs(y - x)[inside]
        allowed = 0.5 * float(scale) + np.abs(x[inside]) * 2.0**-23
        assert (error <= allowed).all(), f"{tensor}: off by {error.max() / scale} steps"
        low, high = np.abs(y + 128.0 * scale), np.abs(y - 127.0 * scale)
        outside = np.where(x < 0, low, high)[~inside]
        assert (outside <= np.abs(128 * scale) * 2.0**-22).all(), f"{tensor}: does not saturate"
    return len(sites)


# ---------------------------------------------------------------------- placement


def pairs_inside_groups(model: onnx.ModelProto) -> list[str]:
    """Tensors with a pair between a weighted operator and its only readers, a normalization or an activation."""
    use: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            use.setdefault(name, []).append(node)
    ends = {"BatchNormalization", "Relu", "Clip", "LeakyRelu", "PRelu", "HardSwish", "Sigmoid", "HardSigmoid"}
    found = []
    for node in model.graph.node:
        if node.op_type not in ("Conv", "ConvTranspose", "BatchNormalization", "Gemm"):
            continue
        for quantize in (q for q in use.get(node.output[0], []) if q.op_type == PAIR[0]):
            readers = [r for dq in use.get(quantize.output[0], []) for r in use.get(dq.output[0], [])]
            gates = {r.output[0] for r in readers if r.op_type in ("Sigmoid", "HardSigmoid")}
            if readers and all(r.op_type in ends or (r.op_type == "Mul" and gates & set(r.input)) for r in readers):
                found.append(node.output[0])
    return found


def wrong_pairs(model: onnx.ModelProto) -> list[str]:
    """Pairs that are not symmetric int8 with finite positive scales, pairs on a bias, and Shape after a pair."""
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if not _is_external(t)}
    rounded = {node.output[0] for node in model.graph.node if node.op_type == PAIR[1]}
    wrong = []
    for node in model.graph.node:
        if node.op_type in PAIR:
            scale, zero = stored[node.input[1]], stored[node.input[2]]
            if zero.dtype != np.int8 or zero.any() or not (np.isfinite(scale).all() and (scale > 0).all()):
                wrong.append(node.output[0])
        biased = node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2
        if (biased and node.input[2] in rounded) or (node.op_type == "Shape" and node.input[0] in rounded):
            wrong.append(node.output[0])
    return wrong
