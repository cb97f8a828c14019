# SPDX-License-Identifier: Apache-2.0
"""Our loaders by Polygraphy's rules: chained with its own, values or callables, one kind in and out, nothing kept."""

from __future__ import annotations

import copy
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.engine.test_built_layers import line
from tests.graphs import SMALL_NET, model_of
from tests.tensorrt_rtx.fake_python import ACCEPTED, library

pytest.importorskip("polygraphy")
pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

import onnx_graphsurgeon as gs
from polygraphy.comparator import DataLoader, StreamingDataLoader
from polygraphy.exception import PolygraphyException

import qdqtool
import qdqtool.polygraphy as ours
from qdqtool.cache.sidecar import read_sidecar
from qdqtool.calibration.engine import calibrate
from qdqtool.data.json_inputs import write_json_inputs

NET = SMALL_NET
V8502 = qdqtool.TrtVersion(8, 5, 2)
PEEL, PTQ = qdqtool.PeelOptions(V8502), qdqtool.PtqOptions(V8502)
LOADERS = [name for name in ours.__all__ if name[0].isupper() and not name.endswith("Runner")]


def net() -> onnx.ModelProto:
    return model_of(NET)


def batches(count: int = 3, seed: int = 4) -> list[dict[str, Any]]:
    values = np.random.default_rng(seed)
    return [{"x": values.normal(size=(2, 4, 8, 8)).astype(np.float32)} for _ in range(count)]


def generated() -> Iterator[dict[str, Any]]:
    yield from batches()


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "m.onnx").write_bytes(net().SerializeToString())
    return str(tmp_path / "m.onnx")


@pytest.fixture(scope="module")
def placed() -> onnx.ModelProto:
    result: onnx.ModelProto = qdqtool.insert(net(), data=batches()).model
    return result


def data_bytes(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def pairs(model: onnx.ModelProto | gs.Graph) -> list[str]:
    if isinstance(model, gs.Graph):
        return [node.inputs[0].name for node in model.nodes if node.op == "QuantizeLinear"]
    return [node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]


def snr(wanted: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    noise = np.sum((wanted.astype(np.float64) - found) ** 2)
    return float(10 * np.log10(np.sum(wanted.astype(np.float64) ** 2) / noise))


# ---------------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_has_its_function_and_plain_defaults(name: str) -> None:
    loader = getattr(ours, name)
    function = getattr(ours, "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_"))
    init, call = inspect.signature(loader), inspect.signature(loader.call_impl)
    assert list(inspect.signature(function).parameters) == list(init.parameters)
    assert list(call.parameters) == ["self"]
    assert all(p.default in (None, p.empty) and p.kind == p.POSITIONAL_OR_KEYWORD for p in init.parameters.values())
    assert inspect.getdoc(loader.__init__) and inspect.getdoc(loader.call_impl) and inspect.getdoc(function)
    attributes = vars(loader(*range(len(init.parameters))))
    assert sorted(attributes) == sorted(f"_{parameter}" for parameter in init.parameters)


def test_importing_the_loaders_brings_no_heavy_library() -> None:
    heavy = {"onnx", "numpy", "onnxruntime", "onnx_graphsurgeon", "tensorrt"}
    code = f"import sys, qdqtool.polygraphy; print(*({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


CHECKED = """
import sys
import numpy as np, onnx
from polygraphy import config
from polygraphy.backend.base import BaseLoader
from polygraphy.exception import PolygraphyInternalException
import qdqtool
from qdqtool.polygraphy import *
from tests.fake_tensorrt import Behavior, installed

assert config.INTERNAL_CORRECTNESS_CHECKS
model = onnx.load(sys.argv[1])
data = [{"x": np.random.default_rng(1).normal(size=(2, 4, 8, 8)).astype(np.float32)}]
version = qdqtool.TrtVersion(8, 5, 2)
insert = InsertQdq(lambda: model, data=data)
scales = CalibrateScales(model, lambda: iter(data))
cache = CacheFromQdq(insert, qdqtool.PeelOptions(version))
loaders = [
    insert, scales, cache,
    PeelQdq(insert, qdqtool.PeelOptions(version), cache_path="p.cache"),
    CacheFromData(model, data, qdqtool.PtqOptions(version)),
    PruneChannels(model), GraftCache(model, cache), SaveCache(cache, "c.cache"), CacheFromPath("c.cache"),
    SaveScales(scales, "s.json"), ScalesFromPath("s.json"), InsertQdq(model, scales="s.json"), AmpTypes(model, data),
]
for loader in loaders:
    loader(), loader()
with installed("10.7.0.23", Behavior()):
    loaders.append(EngineBytesFromModel(lambda: model, qdqtool.BuildOptions(shapes={"x": ((1, 4, 8, 8),) * 3})))
    assert loaders[-1]() == loaders[-1]() != b""
print("kept nothing:", *sorted({type(loader).__name__ for loader in loaders}))

class Forgetful(BaseLoader):
    def call_impl(self):
        self.seen = True

try:
    Forgetful()()
except PolygraphyInternalException:
    print("noticed")
"""


@pytest.mark.slow
def test_no_loader_keeps_anything(path: str, tmp_path: Path) -> None:
    """Polygraphy's own check of it, on every loader, twice; and that the check would notice."""
    env = {**os.environ, "POLYGRAPHY_INTERNAL_CORRECTNESS_CHECKS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHECKED, path]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"kept nothing: {' '.join(sorted(LOADERS))}" in lines
    assert "noticed" in lines
    assert "not recommended" not in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")
@pytest.mark.parametrize("kind", ["proto", "gs", "callable"])
def test_an_engine_is_built_from_each_kind_of_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {**ACCEPTED, "build": {"layers": line(), "shapes": {}, "engine_bytes": 6}}
    body = f"open(job['engine'], 'wb').write(b'engine')\ngive({told!r})\n"
    child = library(tmp_path, body)
    monkeypatch.setattr("qdqtool.verbs.build.require_library", lambda: child)
    model: Any = {"proto": net(), "gs": gs.import_onnx(net()), "callable": net}[kind]
    assert ours.EngineBytesFromModel(model, qdqtool.BuildOptions("rtx"))() == b"engine"
    assert ours.engine_bytes_from_model(model, qdqtool.BuildOptions("rtx")) == b"engine"


def test_a_library_that_is_missing_comes_in_polygraphys_way() -> None:
    with pytest.raises(PolygraphyException, match="TensorRT for RTX"):
        ours.engine_bytes_from_model(net(), qdqtool.BuildOptions("rtx"))


def test_call_impl_is_not_to_be_called(capsys: pytest.CaptureFixture[str], placed: onnx.ModelProto) -> None:
    ours.PeelQdq(placed, PEEL)()
    assert "not recommended" not in capsys.readouterr().out
    ours.PeelQdq(placed, PEEL).call_impl()
    assert "Please use '__call__()' instead" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------- one kind


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: lambda: m], ids=["value", "callable"])
@pytest.mark.parametrize("kind", ["proto", "gs"])
def test_same_kind_out_and_nothing_changed(kind: str, wrap: Callable[[Any], Any], placed: onnx.ModelProto) -> None:
    plain = net() if kind == "proto" else gs.import_onnx(net())
    before = data_bytes(plain if kind == "proto" else gs.export_onnx(plain))
    type_of = onnx.ModelProto if kind == "proto" else gs.Graph
    result = ours.InsertQdq(wrap(plain), data=batches())()
    assert isinstance(result, type_of)
    assert pairs(result) == pairs(placed)
    clean = ours.PeelQdq(wrap(result), PEEL)()
    assert isinstance(clean, type_of)
    assert pairs(clean) == []
    grafted = ours.GraftCache(wrap(plain), ours.CacheFromQdq(wrap(result), PEEL))()
    assert isinstance(grafted, type_of)
    assert pairs(grafted)
    assert data_bytes(plain if kind == "proto" else gs.export_onnx(plain)) == before
    if kind == "proto":
        assert data_bytes(clean) == before


@pytest.mark.parametrize(
    "loader",
    [
        lambda p: ours.InsertQdq(p),
        lambda p: ours.AmpTypes(p, data=batches()),
        lambda p: ours.InsertQdq(lambda: Path(p)),
        lambda p: ours.PeelQdq(p, PEEL),
        lambda p: ours.CacheFromQdq(p, PEEL),
        lambda p: ours.CacheFromData(p, batches(), PTQ),
        lambda p: ours.GraftCache(p, "c.cache"),
        lambda p: ours.CalibrateScales(p, batches()),
    ],
)
def test_a_path_is_refused_where_a_model_is_wanted(loader: Callable[[str], Any], path: str) -> None:
    before = sorted(Path(path).parent.iterdir())
    with pytest.raises(PolygraphyException, match="give OnnxFromPath of it"):
        loader(path)()
    assert sorted(Path(path).parent.iterdir()) == before


# ---------------------------------------------------------------------------------------------------- values, callables


@pytest.mark.parametrize(
    "spell",
    [
        lambda file: batches(),
        lambda file: batches,
        lambda file: generated,
        lambda file: lambda: iter(batches()),
        lambda file: file,
        lambda file: lambda: file,
        lambda file: StreamingDataLoader(file),
        lambda file: lambda: StreamingDataLoader(file),
    ],
    ids=["list", "function", "generator", "iterator", "path", "path function", "streaming", "streaming function"],
)
def test_data_in_every_form_gives_the_same(spell: Callable[[str], Any], tmp_path: Path) -> None:
    file = str(tmp_path / "in.json")
    write_json_inputs(file, batches())
    insert = ours.InsertQdq(net(), data=spell(file))
    first, again = insert(), insert()
    assert data_bytes(first) == data_bytes(again)
    wanted = qdqtool.insert(net(), data=batches())
    assert list(first.graph.node) == list(wanted.model.graph.node)
    assert list(first.graph.initializer) == list(wanted.model.graph.initializer)
    table = ours.calibrate_scales(net(), spell(file))
    assert {n: s.hex() for n, s in table.scales.items()} == {n: s.hex() for n, s in wanted.table.scales.items()}


def test_cache_from_data_is_ptq() -> None:
    assert ours.cache_from_data(net(), generated, PTQ) == qdqtool.ptq(net(), batches(), PTQ).cache


def test_a_callable_is_called_anew_each_time() -> None:
    calls: list[int] = []

    def data() -> Any:
        calls.append(1)
        return batches(seed=len(calls))

    loader = ours.CalibrateScales(lambda: net(), data)
    first, second = loader(), loader()
    assert len(calls) == 2
    assert not first["r1"].same_bits(second["r1"])


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: lambda: v], ids=["value", "callable"])
def test_scales_caches_and_paths_may_be_callables(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    table = calibrate(net(), batches(), qdqtool.CalibrationOptions("max"))
    scales, cache = str(tmp_path / "s.json"), str(tmp_path / "c.cache")
    assert ours.SaveScales(wrap(table), wrap(scales))() is table
    assert Path(scales).read_text() == table.to_json()
    read = ours.ScalesFromPath(wrap(scales))()
    assert read.to_json() == table.to_json()
    models = [ours.InsertQdq(net(), scales=form)() for form in (table, lambda: table, scales, lambda: scales)]
    models.append(qdqtool.insert(net(), scales=table).model)
    assert len({data_bytes(model) for model in models}) == 1

    made = ours.CacheFromQdq(wrap(models[0]), PEEL)()
    assert made == qdqtool.peel(models[0], PEEL).cache
    assert ours.SaveCache(wrap(made), wrap(cache))() is made
    assert ours.CacheFromPath(wrap(cache))() == made == qdqtool.read_cache(cache)
    beside = read_sidecar(cache)
    assert beside is not None and beside.fresh and beside.header == made.header
    grafted = [ours.GraftCache(net(), form)() for form in (made, lambda: made, cache, lambda: cache)]
    assert len({data_bytes(model) for model in grafted}) == 1
    assert {bits.tobytes() for bits in qdqtool.peel(grafted[0], PEEL).cache.entries.values()} == {
        bits.tobytes() for bits in made.entries.values()
    }


def test_options_arrive(placed: onnx.ModelProto) -> None:
    only = ours.insert_qdq(net(), None, None, qdqtool.InsertOptions(plan=qdqtool.PlanOptions(heads=("y",))))
    assert len(pairs(only)) < len(pairs(ours.insert_qdq(net(), None, None, None)))
    table = ours.calibrate_scales(net(), batches(), qdqtool.CalibrationOptions("max"), qdqtool.DataOptions(limit=2))
    assert table["x"].samples == 2
    assert table["x"].bits == np.float32(np.abs(batches()[0]["x"]).max()) / np.float32(127)
    older = replace(PEEL, trt_version=qdqtool.TrtVersion(7, 1, 0))
    assert ours.cache_from_qdq(placed, older).header == "TRT-7100-EntropyCalibration2"


def test_peel_writes_its_cache_where_it_is_reported(tmp_path: Path, placed: onnx.ModelProto) -> None:
    target = tmp_path / "p.cache"
    clean = ours.PeelQdq(lambda: placed, PEEL, cache_path=lambda: str(target))()
    assert data_bytes(clean) == data_bytes(net())
    assert qdqtool.read_cache(target) == ours.CacheFromQdq(placed, PEEL)()
    beside = read_sidecar(target)
    assert beside is not None and beside.verb == "peel" and beside.tensors["x"]["origin"] == "qdq"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.cache", "p.cache.json"]


# ---------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("loader", "part"),
    [
        (lambda: ours.InsertQdq(net(), data=[{"z": np.zeros((1, 4, 8, 8), np.float32)}]), "'z'"),
        (lambda: ours.InsertQdq(net(), data=DataLoader(iterations=1)), "is a DataLoader"),
        (lambda: ours.InsertQdq(net(), data=batches(), scales=qdqtool.ScaleTable()), "both data and scales"),
        (lambda: ours.PeelQdq(net(), PEEL), "has no Q/DQ to take out"),
        (lambda: ours.CacheFromQdq(ours.InsertQdq(net()), PEEL), "were estimated without data"),
        (lambda: ours.CacheFromPath("no.cache"), "no.cache: cannot be read"),
        (lambda: ours.ScalesFromPath(lambda: "no.json"), "no.json: cannot be read"),
        (lambda: ours.CacheFromData(net(), "no.npz", PTQ), "no.npz: does not exist"),
        (lambda: ours.SaveCache(qdqtool.Cache.of(V8502, {}), "no/c.cache"), "no/c.cache: cannot be written"),
    ],
)
def test_faults_are_reported_in_polygraphys_way(
    loader: Callable[[], Any], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PolygraphyException) as caught:
        loader()()
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().err == f"[!] {caught.value}\n"


def test_our_own_bugs_are_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> onnx.ModelProto:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ours.InsertQdq(broken)()


def test_what_was_guessed_or_noted_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    old = copy.deepcopy(net())
    old.opset_import[0].version = 11
    ours.insert_qdq(old)
    said = capsys.readouterr().out
    assert "estimated without data" in said
    assert any(line.startswith("[I]") and "13" in line for line in said.splitlines()), said


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: lambda: one])
def test_a_typed_model_comes_as_the_kind_that_was_given(wrap: Callable[[Any], Any]) -> None:
    plain = net()
    before = data_bytes(plain)
    made = ours.AmpTypes(wrap(plain), data=wrap(batches()))()
    again = ours.amp_types(plain, batches(), None, qdqtool.AmpOptions(to="bf16"))
    kinds = [{tensor.data_type for tensor in model.graph.initializer} for model in (made, again)]
    assert kinds == [{onnx.TensorProto.FLOAT16}, {onnx.TensorProto.BFLOAT16}] and data_bytes(plain) == before
    assert isinstance(ours.AmpTypes(gs.import_onnx(plain), data=batches())(), gs.Graph)


def test_types_without_data_are_refused_in_polygraphys_way() -> None:
    with pytest.raises(PolygraphyException, match="values of the tensors"):
        ours.AmpTypes(net())()
