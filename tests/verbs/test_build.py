# SPDX-License-Identifier: Apache-2.0
"""The verb `build` by the stand-ins: TensorRT of a GPU machine, and a child in the place of TensorRT for RTX."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool import BuildOptions, build
from qdqtool.cache.text import Cache, write_cache
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.trtversion import parse
from tests.fake_tensorrt import Behavior, Fake, installed
from tests.graphs import SMALL_NET, model_of

FIXED = SMALL_NET.replace("float[N,4,8,8] x", "float[1,4,8,8] x").replace("float[N,3] y", "float[1,3] y")
QDQ = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, float s = {0.1}, int8 z = {0}> { xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wq = QuantizeLinear(w, s, z) wd = DequantizeLinear(wq, s, z) y = Conv(xd, wd) }"  # noqa: E501
NAMES = ("x", "c1", "r1", "c2", "r2", "g", "f", "y")


def saved(folder: Path, text: str = FIXED, name: str = "m.onnx") -> Path:
    onnx.save(model_of(text), folder / name)
    return folder / name


def cached(folder: Path, version: str = "10.7.0", names: tuple[str, ...] = NAMES) -> Path:
    write_cache(Cache.of(parse(version), {name: np.float32(0.5) for name in names}), folder / "m.cache")
    return folder / "m.cache"


def built(
    folder: Path, options: BuildOptions | None = None, version: str = "10.7.0.23", model: str = FIXED, **behavior: Any
) -> tuple[Fake, qdqtool.BuildResult]:
    with installed(version, Behavior(**behavior)) as fake:
        result = build(saved(folder, model), folder / "e.engine", options)
    assert fake.cuda.alive == {}, "every device buffer is given back"
    return fake, result


def refused(folder: Path, options: BuildOptions, reason: str, **more: Any) -> None:
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(QdqError, match=reason):
        built(folder, options, **more)
    assert sorted(path.name for path in folder.iterdir()) in (before, sorted([*before, "m.onnx"])), "nothing written"


# -------------------------------------------------------------------------------------------------------- TensorRT


def test_a_plain_model_in_fp32_and_its_layers(tmp_path: Path) -> None:
    fake, result = built(tmp_path)
    assert fake.builds == 1 and fake.config.flags == set() and not fake.network.strongly_typed
    assert result.engine.read_bytes() == b"no engine: this TensorRT is a stand-in"
    assert result.layers_file == tmp_path / "e.engine.layers.json"
    document = json.loads(result.layers_file.read_text())
    assert len(document["Layers"]) == 7 and document["qdqtool"]["version"] == "10.7.0"
    shown = qdqtool.show_engine(result.layers_file)
    assert shown.info.built == result.built and re.match("TensorRT 10.7.0.23, .*GPU; not run$", result.built)
    assert result.totals is not None and result.totals.layers == shown.totals.layers == 7


def test_an_engine_that_this_machine_cannot_load_has_no_layers_file(tmp_path: Path) -> None:
    _, result = built(tmp_path, loads=False)
    assert result.layers_file is None and not (tmp_path / "e.engine.layers.json").exists()
    assert result.summary() == [f"wrote {tmp_path / 'e.engine'} (38 bytes): {result.built}"]


@pytest.mark.parametrize(
    ("version", "options", "flags"),
    [
        ("8.5.2.2", BuildOptions(precision="fp16"), {"FP16"}),
        ("8.6.1", BuildOptions(precision="tf32"), {"TF32"}),
        ("10.13.3.9", BuildOptions(precision="bf16"), {"BF16"}),
        ("11.4.0.106", BuildOptions(precision="tf32"), {"TF32"}),
    ],
)
def test_precisions_become_flags(tmp_path: Path, version: str, options: BuildOptions, flags: set[str]) -> None:
    fake, _ = built(tmp_path, options, version)
    assert fake.config.flags == flags and fake.network.strongly_typed is version.startswith("11")


@pytest.mark.parametrize(
    ("version", "flags", "typed"),
    [("8.6.1", {"INT8", "FP16"}, False), ("10.13.3.9", {"INT8", "FP16"}, False), ("11.4.0.106", set(), True)],
)
def test_q_dq_models(tmp_path: Path, version: str, flags: set[str], typed: bool) -> None:
    fake, result = built(tmp_path, None, version, QDQ)
    assert fake.config.flags == flags and fake.network.strongly_typed is typed and fake.calls == []
    assert bool(result.notes) is (version == "10.13.3.9"), "flags that will go"


def test_a_cache_is_given_to_the_calibrator_and_never_changed(tmp_path: Path) -> None:
    cache = cached(tmp_path)
    before = cache.read_bytes()
    fake, result = built(tmp_path, BuildOptions(cache=cache))
    assert fake.config.flags == {"INT8", "FP16"} and "get_batch" not in fake.calls
    assert fake.calls.count("read_calibration_cache") == 1 and fake.written == b""
    assert cache.read_bytes() == before
    assert [note.split(": ")[0] for note in result.notes] == ["no layer is kept in float"]


def test_a_cache_that_tensorrt_does_not_take_ends_the_build(tmp_path: Path) -> None:
    cache = cached(tmp_path)
    fake = Behavior(header="other")
    assert fake.header == "other"
    with installed("10.7.0.23") as stand_in, pytest.raises(QdqError, match=r"m\.cache: was rejected by TensorRT"):
        stand_in.version = parse("10.6.0")  # it expects another header than its __version__ says
        build(saved(tmp_path), tmp_path / "e.engine", BuildOptions(cache=cache))
    assert not (tmp_path / "e.engine").exists()


def test_layers_stay_in_float_as_peel_emits_them(tmp_path: Path) -> None:
    cache = cached(tmp_path)
    reported = {
        "schema": 1,
        "layers": {"node_of_y": "fp32", "node_of_g": "fp16"},
        "output_types": {"node_of_y": "fp32"},
        "float_tensors": {"f": "fp16"},
    }
    (tmp_path / "m.precision.json").write_text(json.dumps(reported))
    fake, result = built(tmp_path, BuildOptions(cache=cache))
    layers = {layer.outputs[0].name: layer for layer in fake.network}
    assert {name for name, layer in layers.items() if layer.precision_is_set} == {"y", "g", "f"}
    assert layers["y"].precision.name == "FLOAT" and layers["g"].precision.name == "HALF"
    assert (
        set(layers["y"].output_types) == {0} and not layers["g"].output_types and set(layers["f"].output_types) == {0}
    )
    assert "OBEY_PRECISION_CONSTRAINTS" in fake.config.flags
    assert result.notes == (f"layers of {tmp_path / 'm.precision.json'} stay in float",)


def test_a_layer_that_the_network_lacks_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"schema": 1, "layers": {"lost": "fp16", "node_of_y": "fp16"}}))
    _, result = built(tmp_path, BuildOptions(cache=cached(tmp_path), layer_precisions=path))
    assert re.match("1 layer .*: lost$", " ".join(result.notes))


def test_tensorrt_11_has_no_precisions_of_layers(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"schema": 1, "layers": {"node_of_y": "fp16"}}))
    refused(tmp_path, BuildOptions(layer_precisions=path), "takes every type from the model", version="11.4.0.106")


def test_the_dla(tmp_path: Path) -> None:
    options = BuildOptions(cache=cached(tmp_path, "8.5.2"), dla_core=1)
    fake, _ = built(tmp_path, options, "8.5.2.2", dla_cores=2)
    assert fake.config.default_device_type.name == "DLA" and fake.config.DLA_core == 1
    assert fake.config.flags == {"INT8", "FP16", "GPU_FALLBACK", "PREFER_PRECISION_CONSTRAINTS"}
    refused(tmp_path / ".", options, r"--dla-core 1: this machine has no DLA cores", version="8.5.2.2")


def test_precisions_on_the_dla_are_obeyed_and_not_only_preferred(tmp_path: Path) -> None:
    cache = cached(tmp_path, "8.5.2")
    (tmp_path / "m.precision.json").write_text(json.dumps({"schema": 1, "layers": {"node_of_y": "fp16"}}))
    fake, _ = built(tmp_path, BuildOptions(cache=cache, dla_core=0), "8.5.2.2", dla_cores=2)
    assert fake.config.flags == {"INT8", "FP16", "GPU_FALLBACK", "OBEY_PRECISION_CONSTRAINTS"}


def test_shapes_workspace_and_timings(tmp_path: Path) -> None:
    timed = tmp_path / "timing.cache"
    timed.write_bytes(b"before;")
    ranges = {"x": ((1, 4, 8, 8), (2, 4, 8, 8), (4, 4, 8, 8))}
    fake, _ = built(tmp_path, BuildOptions(shapes=ranges, workspace=1 << 30, timing_cache=timed), model=SMALL_NET)
    assert [tuple(one) for one in fake.config.profiles[0].get_shape("x")] == list(ranges["x"])
    assert list(fake.config.pools.values()) == [1 << 30]
    assert timed.read_bytes() == b"before;timed;"
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "e.engine", "e.engine.layers.json", "timing.cache"}


@pytest.mark.parametrize(
    ("options", "model", "reason"),
    [
        (BuildOptions(), SMALL_NET, r"x: is \[N, 4, 8, 8\], and TensorRT would use 1 .*--shapes x:1x4x8x8"),
        (BuildOptions(shapes={"z": ((1,),) * 3}), FIXED, "--shapes"),
        (BuildOptions(shapes={"x": ((1, 3, 8, 8),) * 3}), FIXED, r"'x' takes \[1, 4, 8, 8\], not 1x3x8x8"),
        (BuildOptions(trt_version="8.6.1"), FIXED, "the installed TensorRT is 10.7.0"),
        (BuildOptions(sm=("120",)), FIXED, "--sm: is for --target rtx"),
        (BuildOptions(precision="int8"), FIXED, "has neither Q/DQ nor a cache"),
    ],
)
def test_what_is_refused_before_anything_is_built(
    tmp_path: Path, options: BuildOptions, model: str, reason: str
) -> None:
    refused(tmp_path, options, reason, model=model)


def test_caches_that_are_refused(tmp_path: Path) -> None:
    cache = cached(tmp_path, "8.6.1")
    refused(tmp_path, BuildOptions(cache=cache), r"TRT-8601-.*cache retarget .*m\.cache --trt-version 10\.7\.0")
    refused(tmp_path, BuildOptions(cache=cache), "has no calibration caches; .*qdqtool graft", version="11.4.0.106")
    cached(tmp_path, names=("elsewhere",))
    refused(tmp_path, BuildOptions(cache=cache), "names no float tensor of")
    refused(tmp_path, BuildOptions(cache=cached(tmp_path)), "has Q/DQ, beside which", model=QDQ)


@pytest.mark.parametrize(
    ("behavior", "reason"),
    [
        (
            {"fails": "no implementation for c1"},
            r"m\.onnx: TensorRT builds no engine of it \(no implementation for c1\)",
        ),
        ({"gpu": False}, "TensorRT: does not start a builder .*needs a GPU"),
    ],
)
def test_what_tensorrt_says_is_one_line(tmp_path: Path, behavior: dict[str, Any], reason: str) -> None:
    (tmp_path / "timing.cache").write_bytes(b"old")
    refused(tmp_path, BuildOptions(timing_cache=tmp_path / "timing.cache"), reason, **behavior)
    assert (tmp_path / "timing.cache").read_bytes() == b"old"


def test_without_tensorrt(tmp_path: Path) -> None:
    try:
        import tensorrt  # noqa: F401
    except ImportError:
        with pytest.raises(MissingPackageError, match="tensorrt: is not installed") as error:
            build(saved(tmp_path), tmp_path / "e.engine")
        assert error.value.exit_code == 3
    else:
        pytest.skip("TensorRT is installed here")


def test_a_model_in_memory(tmp_path: Path) -> None:
    with installed("10.7.0.23") as fake:
        build(model_of(FIXED), tmp_path / "e.engine", BuildOptions(precision="fp16"))
    assert fake.builds == 1 and sorted(path.name for path in tmp_path.iterdir()) == ["e.engine", "e.engine.layers.json"]


# ------------------------------------------------------------------------------------------------ TensorRT for RTX

BODY = """
layer = ("Name: c1_myl0_0, LayerType: correlation, Inputs: [ { Name: x, Dimensions: [1,4,8,8], Strides: [1], "
 "StrideOrder: [0], Datatype: Int8, Format: (NHWC) Channel major format }], Constants: [], Outputs: [ { Name: c, "
 "Dimensions: [1,4,8,8], Strides: [1], StrideOrder: [0], Datatype: Float, Format: (NHWC) Channel major format }], "
 "TacticName: t, StreamId: 0, Metadata: [ONNX Layer: c1]" + chr(31) + "[ONNX Layer: r1]")
if job.get("engine"): pathlib.Path(job["engine"]).write_bytes(b"vtrt" + bytes(60))
give({"version": "1.7.1.116", "accepted": True, "network_layers": 3, "errors": [], "log_errors": [], "cpu_seconds": 0.5,
 "warnings": [{"node": "", "text": "careful"}], "peak_bytes": 1 << 27,
 "build": {"layers": layer, "shapes": {"x": [[1, 4, 8, 8]] * 3}, "engine_bytes": 64}})
"""
RTX = BuildOptions("rtx")
needs_script = pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")


def child(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str = BODY) -> None:
    """Let every build of TensorRT for RTX be done by these lines, and nothing be known from before."""
    from tests.tensorrt_rtx.fake_python import library

    inside = folder / "child"
    inside.mkdir(exist_ok=True)
    fake = library(inside, body)
    monkeypatch.setattr("qdqtool.verbs.build.require_library", lambda: fake)
    monkeypatch.setattr("qdqtool.tensorrt_rtx.build.require_library", lambda: fake)
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(folder / "results"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for what is read and written, apart from the child's."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@needs_script
def test_an_engine_for_rtx_and_its_layers(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(tmp_path, monkeypatch)
    result = build(saved(place, SMALL_NET), place / "e.engine", dataclasses.replace(RTX, sm=("89", "120")))
    assert result.engine.read_bytes()[:4] == b"vtrt" and result.engine_bytes == 64
    assert re.match("TensorRT for RTX 1.7.1, .*SM89, SM120; not run; ", result.built)
    assert (result.cpu_seconds, result.peak_bytes) == (0.5, 1 << 27)
    assert re.match("built at x:1x4x8x8, .*--shapes", result.notes[0]) and result.notes[1:] == ("careful",)
    shown = qdqtool.show_engine(place / "e.engine.layers.json")
    assert shown.info.layers == result.info.layers if result.info is not None else False
    assert shown.info.built == result.built and shown.info.source == "built"
    assert shown.totals.products == {"INT8": 1} and shown.totals.bytes_moved == 256 + 4 * 256
    ours = json.loads((place / "e.engine.layers.json").read_text())["qdqtool"]
    assert (ours["schema"], ours["model"], ours["sm"]) == (1, "m.onnx", ["89", "120"])
    assert sorted(path.name for path in place.iterdir()) == ["e.engine", "e.engine.layers.json", "m.onnx"]


@needs_script
def test_a_model_is_built_and_stands_beside_what_was_predicted(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(tmp_path, monkeypatch)
    shown = qdqtool.show_engine(saved(place, SMALL_NET))
    assert shown.comparison is not None and shown.predicted is not None
    assert [row.verdict for row in shown.comparison.rows][:1] == ["format"], "the model is float, the child says INT8"
    assert shown.lines()[0] == f"{place.name and 'm.onnx'}: TensorRT for RTX 1.7.1, built on a CPU for SM89; not run"
    assert qdqtool.show_engine(model_of(SMALL_NET)).totals == shown.totals
    assert qdqtool.diff_engines(place / "m.onnx", place / "m.onnx").aligned[0].change == "same"
    assert [path.name for path in place.iterdir()] == ["m.onnx"], "only the cache of results is written"


@needs_script
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL while it built the engine"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV while it built the engine"),
        ("os.abort()", "was ended by SIGABRT while it built the engine"),
        ("sys.exit(3)", "ended with exit code 3 while it built the engine"),
        (
            "raise SystemError('out of luck')",
            r"ended with exit code 1 while it built the engine \(SystemError: out of luck\)",
        ),
        ("pass", "ended without a result while it built the engine"),
        ("pathlib.Path(job['engine']).write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
)
def test_a_child_that_dies_leaves_one_line_and_no_file(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    child(tmp_path, monkeypatch, body)
    model = saved(place)
    with pytest.raises(QdqError, match=reason) as error:
        build(model, place / "e.engine", RTX)
    assert error.value.exit_code == 2 and "\n" not in error.value.line()
    assert [path.name for path in place.iterdir()] == ["m.onnx"]


@needs_script
def test_an_engine_that_cannot_be_written_beside_its_layers_is_not_written(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(tmp_path, monkeypatch)
    (place / "e.engine.layers.json").mkdir()
    with pytest.raises(QdqError, match=r"e.engine.layers.json: .* folder"):
        build(saved(place), place / "e.engine", RTX)
    assert not (place / "e.engine").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"cache": "m.cache"},
        {"precision": "fp16"},
        {"dla_core": 0},
        {"workspace": 1},
        {"timing_cache": "t"},
        {"trt_version": "11.4.0"},
        {"layer_precisions": "p.json"},
    ],
)
def test_options_of_tensorrt_are_refused_for_rtx(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(QdqError, match="is for the TensorRT of a GPU machine, not for TensorRT for RTX"):
        build(saved(tmp_path), tmp_path / "e.engine", dataclasses.replace(RTX, **changes))


def test_without_tensorrt_for_rtx(tmp_path: Path) -> None:
    with pytest.raises(MissingPackageError, match="TensorRT for RTX: is not installed") as error:
        build(saved(tmp_path), tmp_path / "e.engine", RTX)
    assert error.value.exit_code == 3 and not (tmp_path / "e.engine").exists()


@pytest.mark.parametrize("name", ["m.onnx", "none/e.engine"])
def test_places_that_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(QdqError):
        build(saved(tmp_path), tmp_path / name, RTX)


@pytest.mark.rtx
def test_nvidias_compiler_builds_what_was_planned(tmp_path: Path) -> None:
    placed = qdqtool.insert(model_of(FIXED))
    onnx.save(placed.model, tmp_path / "q.onnx")
    result = build(tmp_path / "q.onnx", tmp_path / "e.engine", RTX)
    assert result.engine.stat().st_size == result.engine_bytes > 1000
    assert result.totals is not None and result.totals.products["INT8"] >= 2 and result.totals.unsized == 0
    shown = qdqtool.show_engine(tmp_path / "q.onnx")
    assert shown.totals == result.totals and shown.comparison is not None
    assert "float" not in shown.comparison.counts()
    assert build(tmp_path / "q.onnx", tmp_path / "again", RTX).engine.read_bytes() == result.engine.read_bytes()
    with pytest.raises(QdqError, match=r"is an engine, .*e\.engine\.layers"):
        qdqtool.show_engine(tmp_path / "e.engine")
