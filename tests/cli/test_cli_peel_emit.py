# SPDX-License-Identifier: Apache-2.0
"""`qdqtool peel --emit`: files beside the cache, names in the peeled model and only there, inputs never touched."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import PeelOptions, insert, peel
from qdqtool.cli.main import main
from qdqtool.emit.trtexec_flags import has_flag
from qdqtool.trtversion import parse
from tests.cli.command import contents, refused, run
from tests.emit.jobs import DETECTOR
from tests.graphs import model_of

Capsys = pytest.CaptureFixture[str]
ALL = ("trtexec", "polygraphy-script", "deepstream", "triton", "json")
ENDS = (".trtexec.sh", ".polygraphy.py", ".deepstream.txt", ".config.pbtxt", ".precision.json")


@pytest.fixture(scope="module")
def made_detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`q.onnx`, made with data from `m.onnx`, whose nodes have no names; both in their folder."""
    folder = tmp_path_factory.mktemp("detector")
    model = model_of(DETECTOR, 13)
    (folder / "m.onnx").write_bytes(model.SerializeToString(deterministic=True))
    np.savez(folder / "d.npz", x=np.random.default_rng(5).normal(size=(4, 3, 8, 8)).astype(np.float32))
    assert main(["insert", str(folder / "m.onnx"), "--data", str(folder / "d.npz"), "-o", str(folder / "q.onnx")]) == 0
    return folder


@pytest.fixture
def detector(made_detector: Path, tmp_path: Path) -> Path:
    """The test's own copy of it."""
    return shutil.copytree(made_detector, tmp_path, dirs_exist_ok=True)


def peeled(capsys: Capsys, folder: Path, *words: object, target: str = "gpu", version: str = "8502") -> str:
    said = run(capsys, "peel", folder / "q.onnx", "--target", target, "--trt-version", version, *words)
    assert said.code == 0, said.err
    return said.out


def command_line(script: Path) -> dict[str, str]:
    """Flag -> value of the script's trtexec line."""
    words = shlex.split(script.read_text().replace("\\\n", ""), comments=True)
    start = words.index("$trtexec")
    return dict(word.partition("=")[::2] for word in words[start + 1 : -1])


def layers_in(script: Path) -> dict[str, str]:
    pairs = [entry.rpartition(":") for entry in command_line(script).get("--layerPrecisions", "").split(",") if entry]
    table = {name: precision for name, _, precision in pairs}
    assert len(table) == len(pairs)
    return table


def check_names(script: Path, model: Path) -> None:
    """Every name in the line is the name of one node of the model, and of one only."""
    names = Counter(node.name for node in onnx.load(model, load_external_data=False).graph.node)
    layers = layers_in(script)
    assert layers and all(names[name] == 1 for name in layers)
    assert set(layers.values()) <= {"fp16", "fp32"}


def test_names_go_to_the_configuration_and_to_a_file_of_labels(capsys: Capsys, detector: Path) -> None:
    out = peeled(capsys, detector, "--emit", "deepstream", "--names", "cat,big dog")
    assert f"wrote {detector / 'q.labels.txt'}" in out
    assert (detector / "q.labels.txt").read_text() == "cat\nbig dog\n"
    assert "# q.labels.txt has " in (detector / "q.deepstream.txt").read_text()
    assert "next: " not in out and out.splitlines()[-1].endswith(" --emit trtexec")
    assert "model-engine-file=q.peeled.onnx_b1_gpu0_int8.engine\n" in (detector / "q.deepstream.txt").read_text()
    words = ("peel", detector / "q.onnx", "--target", "gpu", "--trt-version", "8502", "--names", "coco")
    refused(run(capsys, *words), "--names: ", "; add --emit deepstream")


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_every_kind_beside_the_cache(capsys: Capsys, detector: Path, target: str) -> None:
    out = peeled(capsys, detector, "--emit", ",".join(ALL), target=target)
    for end in ENDS:
        assert f"wrote {detector / f'q{end}'}\n" in out and (detector / f"q{end}").is_file()
    assert out.splitlines()[-1] == f"next: sh {detector / 'q.trtexec.sh'}"
    check_names(detector / "q.trtexec.sh", detector / "q.peeled.onnx")
    precision = {"gpu": "fp32", "dla": "fp16"}[target]
    wanted = {f"node_of_{name}": precision for name in ("b", "e", "boxes")}
    assert layers_in(detector / "q.trtexec.sh") == wanted
    document = json.loads((detector / "q.precision.json").read_text())
    assert document["layers"] == wanted
    assert len(document["tensors"]) == len((detector / "q.cache").read_text().splitlines()) - 1
    assert document["model"] == "q.peeled.onnx" and document["cache"] == "q.cache"
    assert bool(document["output_types"]) is (target == "dla")
    ast.parse((detector / "q.polygraphy.py").read_text())
    keys = configparser.ConfigParser(interpolation=None)
    keys.read(detector / "q.deepstream.txt")
    assert keys["property"]["onnx-file"] == "q.peeled.onnx"
    assert os.access(detector / "q.trtexec.sh", os.X_OK)


def test_names_stand_in_the_peeled_model_and_only_there(capsys: Capsys, detector: Path) -> None:
    before = (detector / "q.onnx").read_bytes()
    peeled(capsys, detector, "--emit", "trtexec")
    named = onnx.load(detector / "q.peeled.onnx")
    assert [node.name for node in named.graph.node] == ["", "", "", "", "node_of_b", "node_of_e", "node_of_boxes"]
    for node in named.graph.node:
        node.ClearField("name")
    assert named.SerializeToString(deterministic=True) == (detector / "m.onnx").read_bytes()
    assert (detector / "q.onnx").read_bytes() == before


def test_without_emit_the_model_comes_back_byte_for_byte(capsys: Capsys, detector: Path) -> None:
    peeled(capsys, detector)
    assert (detector / "q.peeled.onnx").read_bytes() == (detector / "m.onnx").read_bytes()
    assert sorted(path.name for path in detector.iterdir() if path.name.startswith("q.")) == [
        "q.cache",
        "q.cache.json",
        "q.onnx",
        "q.peeled.onnx",
    ]


def test_a_source_keeps_its_bytes_and_its_layers_the_parsers_names(capsys: Capsys, detector: Path) -> None:
    peeled(capsys, detector, "--source", detector / "m.onnx", "--emit", "trtexec")
    assert (detector / "q.peeled.onnx").read_bytes() == (detector / "m.onnx").read_bytes()
    assert list(layers_in(detector / "q.trtexec.sh")) == ["node_of_b", "node_of_e", "node_of_boxes"]


@pytest.mark.parametrize("target", ["gpu", "dla"])
@pytest.mark.parametrize(
    "version", ["7.1.3", "8.0.1", "8.2.1", "8.5.2", "8.6.2", "10.3.0", "10.7.0", "10.12.0", "10.16.1"]
)
def test_every_line_holds_flags_of_its_version(capsys: Capsys, detector: Path, version: str, target: str) -> None:
    words = ("--target", target, "--trt-version", version, "--emit", "trtexec")
    said = run(capsys, "peel", detector / "q.onnx", *words)
    if target == "dla" and parse(version) > parse("10.7.0"):
        refused(said, version, "no INT8 ", " DLA ")
        return
    assert said.code == 0
    line = command_line(detector / "q.trtexec.sh")
    assert {"--onnx", "--int8", "--fp16", "--calib"} <= set(line)
    assert all(has_flag(name, parse(version)) for name in line)
    old = parse(version) < parse("8.4.0")
    assert ("too old for --layerPrecisions" in said.err) is old and ("--layerPrecisions" in line) is not old


def test_eleven_is_refused_and_nothing_written(capsys: Capsys, detector: Path) -> None:
    before = contents(detector)
    words = ("--target", "gpu", "--trt-version", "11.4.1", "--emit", "trtexec")
    refused(run(capsys, "peel", detector / "q.onnx", *words), "11.4.1", "calibration caches")
    assert contents(detector) == before


@pytest.mark.parametrize(
    ("word", "hint"),
    [("trtexc", "did you mean trtexec"), ("xml", "there are trtexec, polygraphy-script"), ("json,", "there are")],
)
def test_a_kind_that_is_none_is_refused(capsys: Capsys, detector: Path, word: str, hint: str) -> None:
    before = contents(detector)
    words = ("--target", "gpu", "--trt-version", "8502", "--emit", word)
    refused(run(capsys, "peel", detector / "q.onnx", *words), "kind of file", hint)
    assert contents(detector) == before


def test_another_folder_and_the_way_back_from_it(capsys: Capsys, detector: Path) -> None:
    (detector / "out").mkdir()
    peeled(capsys, detector, "--emit", "trtexec", "--emit", "deepstream", "--emit-dir", detector / "out")
    assert sorted(path.name for path in (detector / "out").iterdir()) == ["q.deepstream.txt", "q.trtexec.sh"]
    line = command_line(detector / "out" / "q.trtexec.sh")
    assert (line["--onnx"], line["--calib"]) == ("../q.peeled.onnx", "../q.cache")
    assert not any(str(detector) in path.read_text() for path in (detector / "out").iterdir())


def test_a_folder_that_is_not_there_is_refused(capsys: Capsys, detector: Path) -> None:
    before = contents(detector)
    words = ("--target", "gpu", "--trt-version", "8502", "--emit", "json", "--emit-dir", detector / "none")
    refused(run(capsys, "peel", detector / "q.onnx", *words), "none", "a folder")
    assert contents(detector) == before


@pytest.mark.parametrize(
    "words",
    [
        ("--source", "q.precision.json"),
        ("-o", "q.precision.json"),
        ("--cache", "q.x", "-o", "q.precision.json"),
    ],
)
def test_no_input_and_no_other_output_is_written_over(capsys: Capsys, detector: Path, words: tuple[str, ...]) -> None:
    (detector / "q.precision.json").write_bytes((detector / "m.onnx").read_bytes())
    before = contents(detector)
    places = [detector / word if "." in word else word for word in words]
    fixed = ("--target", "gpu", "--trt-version", "8502", "--emit", "json")
    refused(run(capsys, "peel", detector / "q.onnx", *fixed, *places))
    assert contents(detector) == before


def test_what_cannot_be_told_leaves_nothing_behind(capsys: Capsys, tmp_path: Path) -> None:
    text = "n (float[1,4] x) => (float[1,3] y) <float[4,4] w, float[4,3] v>\n{\n h = MatMul(x, w)\n y = MatMul(h, v)\n}"
    (tmp_path / "m.onnx").write_bytes(model_of(text, 13).SerializeToString())
    np.savez(tmp_path / "d.npz", x=np.ones((2, 4), np.float32))
    run(capsys, "insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx")
    before = contents(tmp_path)
    words = ("--target", "gpu", "--trt-version", "8502", "--emit", "trtexec,deepstream")
    refused(run(capsys, "peel", tmp_path / "q.onnx", *words), "Gst-nvinfer ", "one image")
    assert contents(tmp_path) == before


def test_json_says_where_the_files_are(capsys: Capsys, detector: Path) -> None:
    document = json.loads(peeled(capsys, detector, "--emit", "json,triton", "--json"))
    assert document["emitted"] == {
        "triton": str(detector / "q.config.pbtxt"),
        "json": str(detector / "q.precision.json"),
    }
    assert json.loads(peeled(capsys, detector, "--json"))["emitted"] == {}


def test_preprocessing_is_taken_from_the_option(capsys: Capsys, detector: Path) -> None:
    peeled(capsys, detector, "--emit", "deepstream", "--preprocess", "ssd", "--batch", "1")
    keys = configparser.ConfigParser(interpolation=None)
    keys.read(detector / "q.deepstream.txt")
    assert keys["property"]["net-scale-factor"] == "0.0078125" and keys["property"]["offsets"] == "127;127;127"


def test_twice_gives_the_same_bytes(capsys: Capsys, detector: Path) -> None:
    peeled(capsys, detector, "--emit", ",".join(ALL))
    first = contents(detector)
    peeled(capsys, detector, "--emit", ",".join(reversed(ALL)))
    assert contents(detector) == first


def test_a_model_in_memory_gives_texts(detector: Path) -> None:
    options = PeelOptions(parse("8502"), emit=ALL)
    before = contents(detector)
    result = peel(onnx.load(detector / "q.onnx"), options)
    assert set(result.emitted) == set(ALL) and all(isinstance(text, str) for text in result.emitted.values())
    assert "--onnx=model.onnx" in str(result.emitted["trtexec"])
    assert "node_of_b" in {node.name for node in result.model.graph.node}
    assert contents(detector) == before


def test_a_head_whose_name_no_flag_carries_is_listed_and_left_out(capsys: Capsys, detector: Path) -> None:
    model = onnx.load(detector / "q.onnx")
    next(node for node in model.graph.node if "b" in node.output).name = "box,head"
    (detector / "q.onnx").write_bytes(model.SerializeToString())
    said = run(capsys, "peel", detector / "q.onnx", "--target", "gpu", "--trt-version", "8502", "--emit", "trtexec")
    assert said.code == 0 and "box,head" not in " ".join(command_line(detector / "q.trtexec.sh").values())
    assert re.search(r"no name for 1 layers .*: Conv b \(.* character", said.err)
    assert re.search("# trtexec .*: Conv b:", (detector / "q.trtexec.sh").read_text())


@pytest.mark.slow  # whole detectors
@pytest.mark.shared
@pytest.mark.parametrize("target", ["gpu", "dla"])
@pytest.mark.parametrize("name", ["ultraface_rfb320_raw", "yolox_nano_coco", "nanodet_m_320_coco"])
def test_real_detectors(shared: Path, tmp_path: Path, capsys: Capsys, name: str, target: str) -> None:
    """Their regression heads, by what leads to the boxes, are told to stay in float under names that are theirs."""
    insert(shared / "corpus" / "models" / f"{name}.onnx", output=tmp_path / "q.onnx")
    fill = ("--fill", "none") if target == "dla" else ()
    words = ("--allow-estimated", *fill, "--preprocess", "yolox", "--emit", ",".join(ALL))
    peeled(capsys, tmp_path, *words, target=target)
    check_names(tmp_path / "q.trtexec.sh", tmp_path / "q.peeled.onnx")
    graph = onnx.load(tmp_path / "q.peeled.onnx").graph
    heads = [
        node for node in graph.node if node.op_type == "Conv" and node.name in layers_in(tmp_path / "q.trtexec.sh")
    ]
    assert len(heads) == {"ultraface_rfb320_raw": 4, "yolox_nano_coco": 3, "nanodet_m_320_coco": 3}[name]
    for path in (tmp_path / "q.polygraphy.py", tmp_path / "q.deepstream.txt"):
        assert all(node.name in path.read_text() for node in heads)


def test_products_of_two_ranges_compute_in_fp16_on_the_dla_only(tmp_path: Path, capsys: Capsys, models: Path) -> None:
    """Every SiLU of the classifier multiplies what it gates by a gate of another range."""
    source, data = models / "tiny_classifier.onnx", models / "digits8_calib.npz"
    insert(source, data=data, output=tmp_path / "q.onnx")
    muls = {node.name for node in onnx.load(source).graph.node if node.op_type == "Mul"}
    for target in ("gpu", "dla"):
        peeled(capsys, tmp_path, "--emit", "trtexec", target=target)
        reported = muls & set(layers_in(tmp_path / "q.trtexec.sh"))
        assert muls and reported == (muls if target == "dla" else set())


@pytest.mark.parametrize("name", ["a\nenable-dla=1\n.onnx", "a\x1b.onnx", "a\udcff.onnx"])
@pytest.mark.parametrize("option", ["-o", "--cache"])
def test_a_name_that_would_become_a_line_of_its_own_is_refused(
    capsys: Capsys, detector: Path, name: str, option: str
) -> None:
    """A newline in `-o` became a key of deepstream.txt."""
    before = contents(detector)
    words = ("--target", "gpu", "--trt-version", "8502", option, f"{detector}/{name}")
    refused(run(capsys, "peel", detector / "q.onnx", *words, "--emit", "deepstream"), "which --emit cannot write")
    assert contents(detector) == before


def test_a_file_system_without_execute_permission_is_a_warning(
    capsys: Capsys, detector: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chmod(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "chmod", chmod)
    words = ("--target", "gpu", "--trt-version", "8502", "--emit", "trtexec")
    said = run(capsys, "peel", detector / "q.onnx", *words)
    assert said.code == 0 and said.out.splitlines()[-1].startswith("next: sh ")
    assert re.search(r"q.trtexec.sh .*\(Operation not permitted\): .* sh\n", said.err)


def test_more_layers_than_a_line_names_get_a_script(
    detector: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line without their names would build those in INT8 whose output has a scale in the cache."""
    from qdqtool.cli import cache_steps

    assert "--layerPrecisions" in peeled(capsys, detector).splitlines()[-1]
    monkeypatch.setattr(cache_steps, "_MOST_LAYERS", 0)
    lines = peeled(capsys, detector, "-o", detector / "a.onnx", "--cache", detector / "a.cache").splitlines()
    assert lines[-1].startswith("next: qdqtool peel") and lines[-1].endswith("--emit trtexec")
    assert any("too many to name in one line" in line for line in lines)
    again = shlex.split(lines[-1].partition(": ")[2])[1:]
    assert main(again) == 0 and layers_in(next(detector.glob("*.trtexec.sh")))
