# SPDX-License-Identifier: Apache-2.0
"""`polygraphy run` with our plug-in, as its entry point makes Polygraphy find it; and the runner by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import SMALL_NET, model_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

import onnx_graphsurgeon as gs
from polygraphy.exception import PolygraphyException

from qdqtool import InsertOptions, PtqOptions, SimulateOptions, insert, ptq
from qdqtool.polygraphy import Int8SimRunner
from qdqtool.verbs.simulate import simulate

PROJECT = Path(__file__).resolve().parents[1]
GROUP = "polygraphy.run.plugins"
LOADER = """
import numpy as np


def load_data():
    for image in np.load("digits_calib.npz")["images"][32:34]:
        yield {"images": image[None]}
"""


@pytest.fixture
def folder(tmp_path: Path, models: Path) -> Path:
    """The bundled detector, its data, a loader script, and our entry point as an installed package declares it."""
    for name in ("digits_detector.onnx", "digits_calib.npz"):
        shutil.copy(models / name, tmp_path)
    (tmp_path / "digits.py").write_text(LOADER)
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    info = tmp_path / "site" / "declared-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 0\n")
    rows = "".join(f"{name} = {value}\n" for name, value in declared.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{rows}")
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`polygraphy run digits_detector.onnx WORDS...` in the folder."""
    code = "import sys; from polygraphy.tools import main; sys.argv[0] = 'polygraphy'; sys.exit(main())"
    paths = os.pathsep.join([str(PROJECT), str(folder / "site")])
    environment = {**os.environ, "PYTHONPATH": paths, "POLYGRAPHY_AUTOINSTALL_DEPS": "0"}
    command = [sys.executable, "-c", code, "run", "digits_detector.onnx", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_entry_point_gives_the_groups() -> None:
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    groups = EntryPoint("qdqtool", declared["qdqtool"], GROUP).load()()
    assert [type(group).__name__ for group in groups] == ["QdqLoadArgs", "Int8SimRunnerArgs"]


COMPARED = ("--onnxrt", "--int8-sim", "--data-loader-script", "digits.py", "--compare", "snr")
CALIBRATED = ("--qdq-data", "digits_calib.npz", "--qdq-limit", "8", "--qdq-method", "mse", "--qdq-keep-float", "0")


@pytest.mark.slow
def test_polygraphy_runs_a_plain_model_beside_its_int8(folder: Path) -> None:
    """Q/DQ calibrated on the way: within 20 dB of float, not within 60, and the outputs are those of `simulate`."""
    done = run(folder, *COMPARED, *CALIBRATED, "--snr-threshold", "20", "--save-outputs", "o.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed: 2/2 iterations" in done.stdout
    assert run(folder, *COMPARED, *CALIBRATED, "--snr-threshold", "60").returncode == 1

    from polygraphy.comparator import RunResults

    (name,) = (one for one, _ in RunResults.load(str(folder / "o.json")).items() if one.startswith("int8-sim"))
    found = [dict(one) for one in RunResults.load(str(folder / "o.json"))[name]]
    options = InsertOptions(calibration="mse", keep_float=0)
    images = np.load(folder / "digits_calib.npz")["images"]
    placed = insert(folder / "digits_detector.onnx", data=images[:8], options=options, output=folder / "q.onnx")
    simulate(placed.model, images[32:34], output=folder / "ours.npz")
    ours = np.load(folder / "ours.npz")
    for output in ("scores", "boxes"):
        assert np.concatenate([one[output] for one in found]).tobytes() == ours[output].tobytes()


@pytest.mark.slow
def test_polygraphy_runs_a_plain_model_with_a_cache(folder: Path) -> None:
    ptq(folder / "digits_detector.onnx", folder / "digits_calib.npz", PtqOptions("8502"), cache=folder / "c.cache")
    gpu = run(folder, *COMPARED, "--qdq-cache", "c.cache", "--snr-threshold", "10")
    assert gpu.returncode == 0, gpu.stdout + gpu.stderr
    script = run(folder, *COMPARED, "--qdq-cache", "c.cache", "--qdq-target", "dla", "--gen-script", "-").stdout
    assert "Int8SimRunner(load_onnx, options=SimulateOptions(target='dla', cache='c.cache'))" in script
    compile(script, "generated", "exec")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--qdq-data", "d", "--qdq-cache", "c"], "--qdq-data and --qdq-cache: give one of them"),
        (["--qdq-limit", "2"], "--qdq-limit says how data is used: give --qdq-data"),
        (["--qdq-data", "d", "--qdq-keep-float", "x"], "--qdq-keep-float x: is neither a number nor auto"),
        ([], "has no Q/DQ, and no cache is given; give a cache"),
        (["--qdq-data", "no.npz"], "no.npz: does not exist"),
    ],
)
def test_polygraphy_says_what_is_wrong_in_a_line(folder: Path, words: list[str], line: str) -> None:
    done = run(folder, "--int8-sim", "--data-loader-script", "digits.py", *words)
    assert done.returncode == 1
    assert line in done.stderr and "Traceback" not in done.stderr + done.stdout


# ---------------------------------------------------------------- the runner by itself


@pytest.mark.parametrize("kind", ["proto", "graph", "loader"])
def test_the_runner_gives_what_simulate_gives(kind: str, tmp_path: Path) -> None:
    data = np.random.default_rng(3).normal(size=(4, 4, 8, 8)).astype(np.float32)
    placed = insert(model_of(SMALL_NET), data=data).model
    model = {"proto": placed, "graph": gs.import_onnx(placed), "loader": lambda: placed}[kind]
    before = placed.SerializeToString()
    simulate(placed, data, output=tmp_path / "o.npz")
    with Int8SimRunner(model, name="ours") as runner:
        assert runner.name == "ours"
        metadata = runner.get_input_metadata(use_numpy_dtypes=False)
        assert list(metadata) == ["x"] and list(metadata["x"].shape)[1:] == [4, 8, 8]
        found = runner.infer({"x": data})
        assert runner.last_inference_time() > 0
    assert list(found) == ["y"]
    assert found["y"].tobytes() == np.load(tmp_path / "o.npz")["y"].tobytes()
    assert placed.SerializeToString() == before


def test_the_runner_takes_the_cache_of_a_plain_model() -> None:
    data = np.random.default_rng(3).normal(size=(4, 4, 8, 8)).astype(np.float32)
    plain = model_of(SMALL_NET, opset=13)
    cache = ptq(plain, data, PtqOptions("8502")).cache
    outputs = []
    for target in ("gpu", "dla"):
        with Int8SimRunner(plain, SimulateOptions(target=target, cache=cache)) as runner:
            outputs.append(runner.infer({"x": data})["y"])
    assert outputs[0].shape == outputs[1].shape == (4, 3)
    assert outputs[0].tobytes() != outputs[1].tobytes(), "a DLA rounds in other places"


def test_the_runner_refuses_a_path_and_a_model_without_int8() -> None:
    with pytest.raises(PolygraphyException, match="give OnnxFromPath of it"):
        Int8SimRunner("m.onnx").activate()  # type: ignore[arg-type]
    with pytest.raises(PolygraphyException, match="has no Q/DQ"):
        Int8SimRunner(onnx.load_from_string(model_of(SMALL_NET).SerializeToString())).activate()
