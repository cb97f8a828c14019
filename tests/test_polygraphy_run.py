# SPDX-License-Identifier: Apache-2.0
"""Polygraphy's command line on what ours made and the reverse: models, loader scripts, saved inputs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import model_of

pytest.importorskip("polygraphy")
pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.cli.main import main
from qdqtool.data.json_inputs import JsonInputs, write_json_inputs
from qdqtool.data.loader import DataLoader, Input, open_loader
from qdqtool.errors import QdqError
from qdqtool.polygraphy import insert_qdq
from qdqtool.scales import ScaleTable

NET = """net (float[N,4,8,8] x) => (float[N,4,8,8] y) <float[4,4,3,3] w1, float[4] b1, float[4,4,3,3] w2>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1, b1)
 r1 = Relu(c1)
 c2 = Conv<pads=[1,1,1,1]>(r1, w2)
 y = Relu(c2)
}"""
INPUTS = [Input("x", (None, 4, 8, 8), np.dtype(np.float32))]
LOADER = """
import numpy as np
from beside import COUNT, SCALE


def load_data():
    values = np.random.default_rng(8)
    for _ in range(COUNT):
        yield {"x": (SCALE * values.normal(size=(1, 4, 8, 8))).astype(np.float32)}


def one():
    return [{"x": np.ones((1, 4, 8, 8), np.float32)}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a plain model and a loader script that imports a module beside it."""
    (tmp_path / "m.onnx").write_bytes(model_of(NET).SerializeToString())
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "digits.py").write_text(LOADER)
    (tmp_path / "scripts" / "beside.py").write_text("COUNT, SCALE = 3, 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return tmp_path


def polygraphy(*words: str) -> str:
    """Run `polygraphy WORDS...` in the current folder; what it printed."""
    code = "import sys; from polygraphy.tools import main; sys.argv[0] = 'polygraphy'; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def as_polygraphy_loads(*words: str) -> list[dict[str, Any]]:
    """What Polygraphy's own options for data give."""
    from polygraphy.tools.args import DataLoaderArgs, ModelArgs

    groups = {kind: kind() for kind in (ModelArgs, DataLoaderArgs)}
    parser = argparse.ArgumentParser()
    for group in groups.values():
        group.register(groups)
        group.add_parser_args(parser)
    args = parser.parse_args(["m.onnx", *words])
    for group in groups.values():
        group.parse(args)
    return [dict(item) for item in groups[DataLoaderArgs].get_data_loader()]


def same(found: DataLoader | list[Any], wanted: list[Any]) -> None:
    items = list(found)
    assert len(items) == len(wanted) > 0
    for one, other in zip(items, wanted, strict=True):
        assert one.keys() == other.keys()
        assert all((one[name].dtype, one[name].tobytes()) == (a.dtype, a.tobytes()) for name, a in other.items())


# ---------------------------------------------------------------------------------------------------- polygraphy run


@pytest.mark.slow
def test_polygraphy_run_on_a_model_of_ours(folder: Path) -> None:
    """The Q/DQ model against the plain one on the same script, to a bound that only a sound one keeps."""
    script = str(folder / "scripts" / "digits.py")
    onnx.save(insert_qdq(onnx.load("m.onnx"), script), "q.onnx")
    saved = ["--save-inputs", "in.json", "--save-outputs", "float.json"]
    polygraphy("run", "m.onnx", "--onnxrt", "--data-loader-script", "scripts/digits.py", *saved)
    bounds = ["--compare", "snr", "--snr-threshold", "25"]
    out = polygraphy("run", "q.onnx", "--onnxrt", "--load-inputs", "in.json", "--load-outputs", "float.json", *bounds)
    assert "PASSED" in out
    assert "3/3" in out, out
    same(open_loader("in.json", INPUTS), list(open_loader(script, INPUTS)))


@pytest.mark.slow
def test_polygraphy_reads_inputs_of_ours(folder: Path) -> None:
    items = list(open_loader("scripts/digits.py", INPUTS))
    write_json_inputs("file.json", items)
    write_json_inputs("folder", items)
    polygraphy("run", "m.onnx", "--onnxrt", "--load-inputs", "file.json", "folder", "--save-inputs", "again")
    again = JsonInputs((Path("again"),))
    assert len(again.files()) == 6
    same(open_loader(again, INPUTS), [*items, *items])


# ---------------------------------------------------------------------------------------------------- scripts


@pytest.mark.parametrize("text", ["scripts/digits.py", "scripts/digits.py:load_data", "scripts/digits.py:one"])
def test_a_script_gives_what_it_gives_polygraphy(folder: Path, text: str) -> None:
    wanted = as_polygraphy_loads("--data-loader-script", text)
    feed = open_loader(text, INPUTS)
    same(feed, wanted)
    same(feed, wanted)  # and once more from its beginning
    same(open_loader(str(folder / text), INPUTS), wanted)
    assert len(wanted) == (1 if text.endswith("one") else 3)


def test_a_script_of_another_folder_and_the_same_name_is_another(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "digits.py").write_text(LOADER.replace("from beside import COUNT, SCALE", "COUNT = SCALE = 1"))
    before = list(sys.path), set(sys.modules)
    feeds = [open_loader(f"{name}/digits.py", INPUTS) for name in ("scripts", "other", "scripts")]
    assert [len(list(feed)) for feed in feeds] == [3, 1, 3]
    assert sys.path == before[0]
    assert {name for name in set(sys.modules) - before[1] if not name.startswith("qdqtool_data_")} == {"beside"}


def test_a_script_that_fails_leaves_the_path_as_it_was(folder: Path) -> None:
    before = list(sys.path)
    (folder / "bad.py").write_text("import sys\nsys.path.pop(0)\nimport no_such_module\n")
    with pytest.raises(QdqError, match="no_such_module"):
        open_loader("bad.py", INPUTS)
    assert sys.path == before


# ---------------------------------------------------------------------------------------------------- our options


def table(name: str) -> dict[str, Any]:
    return {n: s.hex() for n, s in ScaleTable.from_json(Path(name).read_text(encoding="utf-8")).scales.items()}


def test_polygraphys_spellings_are_data(folder: Path) -> None:
    items = list(open_loader("scripts/digits.py", INPUTS))
    write_json_inputs("a.json", items[:1])
    write_json_inputs("rest", items[1:])
    spelled = {
        "data": ["--data", "scripts/digits.py"],
        "script": ["--data-loader-script", "scripts/digits.py:load_data"],
        "inputs": ["--load-inputs", "a.json", "rest"],
        "reversed": ["--load-inputs", "rest", "a.json", "--limit", "2"],
    }
    for name, words in spelled.items():
        assert main(["calibrate", "m.onnx", *words, "-q", "-o", f"{name}.s.json"]) == 0
    assert table("data.s.json") == table("script.s.json") == table("inputs.s.json") != table("reversed.s.json")
    facts = json.loads(Path("inputs.s.json").read_text(encoding="utf-8"))["facts"]
    assert facts["samples"] == 3 and facts["data"]["kind"] == "json"


@pytest.mark.parametrize("verb", ["insert", "ptq"])
def test_every_verb_with_data_takes_them(folder: Path, verb: str) -> None:
    rest = ["--target", "gpu", "--trt-version", "8502"] if verb == "ptq" else []
    place = {"insert": "-o", "ptq": "--cache"}[verb]
    write_json_inputs("in", open_loader("scripts/digits.py", INPUTS))
    for index, words in enumerate((["--data-loader-script", "scripts/digits.py"], ["--load-inputs", "in"])):
        assert main([verb, "m.onnx", *words, *rest, "-q", place, f"out{index}"]) == 0
    if verb == "insert":
        models = [onnx.load(f"out{index}").graph for index in range(2)]
        assert list(models[0].initializer) == list(models[1].initializer) and list(models[0].node) == list(
            models[1].node
        )
    else:
        assert Path("out0").read_bytes() == Path("out1").read_bytes()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--data-loader-script", "digits.npz"], ["--data-loader-script", "'digits.npz' is not FILE.py"]),
        (["--data-loader-script", "no.py"], ["no.py: does not exist"]),
        (["--load-inputs", "no.json"], ["no.json: does not exist"]),
        (["--load-inputs", "scripts"], ["scripts: holds no .json"]),
        (["--load-inputs", "a.json", "--data", "a.json"], ["--data", "not allowed with", "--load-inputs"]),
        (["--load-inputs", "a.json", "in", "-o", "in/0000000001.json"], ["is the input, which is never overwritten"]),
        ([], ["--data", "--data-loader-script", "--load-inputs", "needs a model"]),
    ],
)
def test_what_is_refused(folder: Path, words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"x": np.ones((1, 4, 8, 8), np.float32)}] * 2
    write_json_inputs("a.json", items)
    write_json_inputs("in", items)
    before = {name: (folder / name).read_bytes() for name in ("a.json", "in/0000000001.json")}
    assert main(["calibrate", "m.onnx", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("qdqtool: error: ")
    assert all(part in said for part in parts), said
    assert before == {name: (folder / name).read_bytes() for name in before}
    assert not list(folder.glob("*.scales.json"))
