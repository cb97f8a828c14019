# SPDX-License-Identifier: Apache-2.0
"""Which TensorRT is taken: its version, its calibrators, and the one line where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qdqtool.calibration.tensorrt.backend import Request
from qdqtool.calibration.tensorrt.calibrator import TensorrtBackend
from qdqtool.calibration.tensorrt.installed import find_tensorrt
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.graph.model import Model
from qdqtool.trtversion import TrtVersion
from tests.calibration.tensorrt.backend_subjects import batches, model
from tests.fake_tensorrt import Fake, installed

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

V10 = "10.13.3.9"
RELU = "net (float[2,4] x) => (float[2,4] y) { y = Relu(x) }"


@pytest.fixture
def fake() -> Iterator[Fake]:
    with installed(V10) as one:
        yield one


def test_tensorrt_11_is_probed_and_refused_with_the_pip_line() -> None:
    with installed("11.4.0.106"), pytest.raises(MissingPackageError) as caught:
        find_tensorrt("entropy")
    assert caught.value.exit_code == 3 and "TensorRT 11.4.0.106: has no INT8 calibrators" in caught.value.line()
    assert 'pip install "tensorrt>=8.5,<11"' in caught.value.line() and "qdqtool insert" in caught.value.line()


def test_no_tensorrt_is_exit_3_and_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingPackageError, match=r"tensorrt: .*--backend tensorrt .*pip install"):
        find_tensorrt("entropy")


def test_one_that_does_not_load_or_is_not_whole_is_told_from_one_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = {"broken": 'raise OSError("libnvinfer.so.10: cannot open shared object file")\n', "part": ""}
    parts = {"broken": r"does not load \(libnvinfer.so.10: cannot open", "part": "is installed only in part"}
    for kind, text in texts.items():
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "tensorrt.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path / kind)
        monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
        with pytest.raises(MissingPackageError, match=parts[kind]):
            find_tensorrt("entropy")
    sys.modules.pop("tensorrt", None)


@pytest.mark.parametrize("version", ["8.5.1.7", "8.6.1", "8.6.1.post1", "9.2.0.5", "10.0.1", "10.16.1.11"])
def test_versions_from_8_5_to_10_16_go_and_name_their_own_caches(version: str) -> None:
    with installed(version):
        found = TensorrtBackend().calibrate(Request(Model(model(RELU))), batches(2, (2, 4)))
    major, minor, patch = version.split(".")[:3]
    assert found.cache is not None and found.cache.version == TrtVersion(int(major), int(minor), int(patch))
    assert found.table.provenance.tensorrt == version


def test_another_version_than_the_installed_one_is_refused() -> None:
    with (
        installed(V10),
        pytest.raises(QdqError, match=r"--trt-version 8.6.1: the installed TensorRT is 10.13.3") as caught,
    ):
        find_tensorrt("entropy", TrtVersion(8, 6, 1))
    assert "cache retarget" in caught.value.line() and caught.value.exit_code == 2
    with installed("8.4.3"), pytest.raises(MissingPackageError, match=r"is older than 8\.5"):
        find_tensorrt("entropy")
    with installed(V10):
        assert find_tensorrt("entropy", TrtVersion(10, 13, 3)).text == V10


@pytest.mark.parametrize("method", ["mse", "percentile=99.9", "entropy-stable"])
def test_methods_that_tensorrt_has_not_are_refused(fake: Fake, method: str) -> None:
    with pytest.raises(QdqError, match=r"TensorRT's calibrators; .*entropy or max"):
        TensorrtBackend().check(Request(Model(model(RELU)), method=method))


def test_tensorrt_rtx_is_refused(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polygraphy.config.USE_TENSORRT_RTX", True)
    with pytest.raises(QdqError, match="POLYGRAPHY_USE_TENSORRT_RTX: is set, and TensorRT-RTX has no calibrators"):
        find_tensorrt("entropy")
