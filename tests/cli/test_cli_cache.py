# SPDX-License-Identifier: Apache-2.0
"""`qdqtool cache` through main: words in, lines and exit codes out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.cli.main import main

TEXT = "TRT-7103-EntropyCalibration2\r\ninput: 3c010a14\r\nRelu:0: 3f800000\r\nzero: 0\r\nmask: 7f800000\r\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.cache"
    path.write_bytes(TEXT.encode())
    return path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_control_characters_in_the_name_of_an_output_are_escaped(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    assert main(["cache", "convert", str(source), "--to", "csv", "-o", "a\x1b[2J\nb"]) == 0
    assert capsys.readouterr().out.startswith("a\\x1b[2J\\nb: trt -> csv, ")


def test_show(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "show", str(source)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = [line.split() for line in out.splitlines()]
    assert ["header", "TRT-7103-EntropyCalibration2"] in rows
    assert "version    TensorRT 7.1.3 (JetPack 4.4, JetPack 4.4.1, JetPack 4.5, JetPack 4.5.1)" in out.splitlines()
    assert ["algorithm", "EntropyCalibration2"] in rows
    assert ["entries", "2"] in rows
    assert ["dropped", "2"] in rows
    assert ["Relu:0", "1", "127", "3f800000"] in rows
    assert ["dropped", "zero:", "0", "is", "zero"] in rows
    assert ["dropped", "mask:", "7f800000", "is", "infinite"] in rows
    assert "1 of the names" in out


def test_show_says_of_a_scale_that_is_beyond_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.cache").write_text("TRT-8601-EntropyCalibration2\ninput: 3c010a14\nmask: 78374df0\n")
    assert main(["cache", "show", str(tmp_path / "m.cache")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("doubtful")]
    assert line.startswith("doubtful   mask: amax 1.89e+36 is beyond FP16 (65504)")


def test_show_json(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "show", str(source), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["file"] == str(source)
    assert {name: entry["scale"] for name, entry in facts["entries"].items()} == {
        "input": "3c010a14",
        "Relu:0": "3f800000",
    }
    assert [(entry["name"], entry["reason"]) for entry in facts["dropped"]] == [("zero", "zero"), ("mask", "infinite")]
    assert facts["names_with_colon"] == ["Relu:0"]


@pytest.mark.parametrize("header", ["1", "0 3ff0000000000000 3fefffeb074a771d"])
def test_show_reads_the_oldest_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str], header: str) -> None:
    (tmp_path / "t").write_text(f"{header}\nx: 1\n")
    assert main(["cache", "show", str(tmp_path / "t")]) == 0
    assert "TensorRT 5.0 or before" in capsys.readouterr().out


def test_show_escapes_what_a_terminal_would_act_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_text("1\n\x1b[2Jx\u202e: 1\né: 0\n", encoding="utf-8")
    assert main(["cache", "show", str(tmp_path / "t")]) == 0
    out = capsys.readouterr().out
    assert "\\x1b[2Jx\\u202e" in out
    assert "é" in out
    assert "\x1b" not in out


def test_show_on_a_terminal_without_unicode(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("1\né: 1\n", encoding="utf-8")
    command = [sys.executable, "-m", "qdqtool", "cache", "show", str(tmp_path / "t")]
    done = subprocess.run(
        command, capture_output=True, env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    assert b"\\xe9" in done.stdout


def test_retarget(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = source.with_name("o.cache")
    assert main(["cache", "retarget", str(source), "--trt-version", "8502", "-o", str(out)]) == 0
    assert out.read_bytes() == b"TRT-8502-EntropyCalibration2\ninput: 3c010a14\nRelu:0: 3f800000\n"
    assert source.read_bytes() == TEXT.encode()
    said, warned = capsys.readouterr()
    assert said == f"{out}: TRT-7103-EntropyCalibration2 -> TRT-8502-EntropyCalibration2, 2 scales unchanged\n"
    assert warned.startswith("qdqtool: warning: 2 entries ")


@pytest.mark.parametrize(("word", "number"), [("8502", 8502), ("jp4.6", 8001), ("10.3", 100300), ("drive6.0.9", 8612)])
def test_retarget_to_a_default_name(source: Path, word: str, number: int) -> None:
    assert main(["cache", "retarget", str(source), "--trt-version", word]) == 0
    assert files(source.parent) == sorted(["m.cache", f"m.trt{number}.cache", f"m.trt{number}.cache.json"])
    written = source.with_name(f"m.trt{number}.cache").read_text()
    assert written.startswith(f"TRT-{number}-EntropyCalibration2\n")


def test_retarget_json_keeps_stdout_to_itself(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "retarget", str(source), "--trt-version", "7100", "--json"]) == 0
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert facts["file"] == str(source.with_name("m.trt7100.cache"))
    assert (facts["from"], facts["header"]) == ("TRT-7103-EntropyCalibration2", "TRT-7100-EntropyCalibration2")
    assert (facts["entries"], facts["dropped"]) == (2, 2)
    assert [f"qdqtool: warning: {line}" for line in facts["warnings"]] == err.splitlines()
    assert "JetPack 4.4 GA" in err


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("word", ["-q", "--quiet"])
def test_quiet_is_quiet_before_and_after_the_action(
    source: Path, capsys: pytest.CaptureFixture[str], word: str, where: str
) -> None:
    action = ["retarget", str(source), "--trt-version", "7100"]
    assert main(["cache", word, *action] if where == "before" else ["cache", *action, word]) == 0
    assert capsys.readouterr() == ("", "")


def test_verbose_shows_where_a_fault_arose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "show", str(tmp_path / "absent"), "-v"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["m.cache", "./m.cache", "link", "hard"])
def test_the_input_is_never_overwritten(source: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (source.parent / "link").symlink_to(source)
    (source.parent / "hard").hardlink_to(source)
    assert main(["cache", "retarget", str(source), "--trt-version", "8502", "-o", f"{source.parent}/{name}"]) == 2
    assert re.search("overwritten; .* -o", capsys.readouterr().err)
    assert source.read_bytes() == TEXT.encode()


def test_the_input_is_not_overwritten_by_a_default_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.trt8502.cache"
    source.write_bytes(TEXT.encode())
    assert main(["cache", "retarget", str(source), "--trt-version", "8502"]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert source.read_bytes() == TEXT.encode()


@pytest.mark.parametrize(
    ("content", "version", "reason"),
    [
        (TEXT, "11.4.1", "(10.16 was the last), only Q/DQ models; use qdqtool graft"),
        (TEXT, "8.5", "8.5: may be several versions of TensorRT; give one of 8.5.1, 8.5.2"),
        (TEXT, "jp9", "jp9: is no JetPack known here"),
        (TEXT, "-1", "-1: is not a TensorRT version"),
        ("0 3ff0000000000000 3fefffeb074a771d\nx: 1\n", "8502", "m.cache: holds scales of the legacy calibrator"),
        ("", "8502", "m.cache: is empty"),
        ("TRT-7103-EntropyCalibration2\nx: 1\nx: 2\n", "8502", "m.cache: line 3: 'x' has another scale than in line 2"),
        ("TRT-7103-EntropyCalibration2\nx: 7fc00000\n", "8502", "m.cache: line 2: the scale of 'x' is not a number"),
        ("TRT-7103-EntropyCalibration2\na\x0bb: 1\n", "8502", "'a\\x0bb': is not a name for a calibration cache"),
        ("\x08\x07\x12\x07pytorch\0", "8502", "m.cache: is not a calibration cache"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, version: str, reason: str
) -> None:
    source = tmp_path / "m.cache"
    source.write_bytes(content.encode())
    assert main(["cache", "retarget", str(source), "--trt-version", version]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("qdqtool: error: ")
    assert err.count("\n") == 1
    assert reason in err
    assert files(tmp_path) == ["m.cache"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "required: show|check|retarget|diff|merge|convert"),
        (["shw", "x"], "invalid choice: 'shw'"),
        (["show"], "required: CACHE"),
        (["retarget", "x"], "required: --trt-version"),
        (["show", "x", "--trt-version", "8502"], "unknown argument --trt-version"),
        (["retarget", "x", "--trt", "8502"], "required: --trt-version"),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    assert main(["cache", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("qdqtool: error: cache")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["-h"], ["show", "-h"], ["retarget", "-h"]])
def test_help_does_not_import_numpy_or_onnx(words: list[str]) -> None:
    code = (
        "import sys; from qdqtool.cli.main import main; code = main(['cache', *sys.argv[1:]]); "
        "sys.exit(code or any(m in sys.modules for m in ('numpy', 'onnx')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    assert "usage: qdqtool cache" in done.stdout
