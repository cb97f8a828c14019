# SPDX-License-Identifier: Apache-2.0
"""The trtexec script: run by a shell with a stand-in for trtexec, its words checked against the table of flags."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.emit import emit
from qdqtool.emit.job import EmitJob, Tensor
from qdqtool.emit.trtexec import qdq_arguments, trtexec_arguments, write_trtexec
from qdqtool.emit.trtexec_flags import FLAGS, has_flag
from qdqtool.errors import QdqError
from qdqtool.trtversion import parse
from tests.emit.jobs import FLOAT, VERSIONS, job_of, layer

LAYERED = ("8.5.2", "8.6.2", "10.3.0", "10.7.0", "10.12.0", "10.16.1")


def arguments(job: EmitJob) -> dict[str, str]:
    """Flag -> value, of flags given once."""
    words = trtexec_arguments(job)
    table = dict(word.partition("=")[::2] for word in words)
    assert len(table) == len(words)
    return table


def said(job: EmitJob) -> str:
    """The comments of the script."""
    return "\n".join(line for line in write_trtexec(job).text.splitlines() if line.startswith("#"))


def run_script(job: EmitJob, folder: Path, *more: str) -> list[str]:
    """What the script hands to trtexec when a shell runs it."""
    fake = folder / "fake"
    fake.write_text('#!/bin/sh\npwd\nprintf "%s\\0" "$@"\n')
    fake.chmod(0o755)
    script = folder / "s.sh"
    script.write_text(write_trtexec(job).text)
    done = subprocess.run(
        ["sh", str(script), *more],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={**os.environ, "TRTEXEC": str(fake)},
    )
    where, words = done.stdout.split("\n", 1)
    assert Path(where).samefile(folder)
    return words.split("\0")[:-1]


@pytest.mark.parametrize("target", ["gpu", "dla"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_flag_of_the_line_is_one_that_the_version_takes(version: str, target: str) -> None:
    table = arguments(job_of(version, target))
    known = {row.name for row in FLAGS}
    assert set(table) <= known
    assert all(has_flag(name, parse(version)) for name in table)
    assert table["--onnx"] == "m.onnx" and table["--calib"] == "m.cache" and "--int8" in table and "--fp16" in table


@pytest.mark.parametrize("version", LAYERED)
def test_float_layers_are_named_and_obeyed(version: str) -> None:
    table = arguments(job_of(version))
    assert table["--precisionConstraints"] == "obey"
    assert table["--layerPrecisions"] == "head:fp32,stem:fp16"
    assert table["--layerOutputTypes"] == "head:fp32"


@pytest.mark.parametrize("version", sorted(set(VERSIONS) - set(LAYERED)))
def test_a_trtexec_that_is_too_old_says_so_and_is_told_nothing(version: str) -> None:
    job = job_of(version)
    assert not {"--layerPrecisions", "--layerOutputTypes", "--precisionConstraints"} & set(arguments(job))
    assert f"trtexec {version} " in said(job) and "--layerPrecisions" in said(job)
    (warning,) = write_trtexec(job).warnings
    assert "2 layers" in warning and "polygraphy-script" in warning


def test_a_script_says_which_layers_run_in_float_without_being_told_so() -> None:
    """`cannot keep 11 layers in float` stood alone in the script, though none of them had a scale."""
    assert re.search("in m.cache .*INT8: [a-z]+; 1 without a scale", said(job_of("7.1.3")))
    alone = said(job_of("7.1.3", scales={}))
    assert "in m.cache: TensorRT runs them in float" in alone
    assert "has a scale" not in said(job_of("8.5.2")) and "has a scale" not in said(job_of("7.1.3", layers=()))


def test_a_script_says_that_all_float_layers_with_scales_run_in_int8() -> None:
    job = job_of("7.1.3", layers=(layer("head"),))
    assert "these in INT8: head" in said(job) and "run in float" not in said(job)


def test_the_script_that_tells_all_is_named_where_it_is_written() -> None:
    both = emit(job_of("8.2.1"), ["trtexec", "polygraphy-script"])["trtexec"]
    assert both.warnings[0].endswith("; m.polygraphy.py can") and both.warnings[0] in both.text
    (alone,) = emit(job_of("8.2.1"), ["trtexec"])["trtexec"].warnings
    assert alone.endswith("--emit polygraphy-script can")


def test_without_float_layers_nothing_is_constrained() -> None:
    table = arguments(job_of("10.3.0", layers=()))
    assert not {"--layerPrecisions", "--precisionConstraints"} & set(table)
    assert write_trtexec(job_of("7.1.3", layers=())).warnings == ()


def test_types_of_outputs_only_where_a_scale_makes_int8_possible() -> None:
    assert "--layerOutputTypes" not in arguments(job_of(layers=(layer("a"), layer("b"))))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_dla_is_asked_for_only_for_the_dla(version: str) -> None:
    assert not {"--useDLACore", "--allowGPUFallback"} & set(arguments(job_of(version, "gpu")))
    table = arguments(job_of(version, "dla"))
    assert table["--useDLACore"] == "0" and table["--allowGPUFallback"] == ""


def test_old_versions_are_told_what_new_ones_do_by_themselves() -> None:
    assert {"--explicitBatch", "--workspace"} <= set(arguments(job_of("7.1.3")))
    assert "--explicitBatch" not in arguments(job_of("8.0.1")) and "--workspace" in arguments(job_of("8.2.1"))
    assert not {"--explicitBatch", "--workspace"} & set(arguments(job_of("8.5.2")))


def test_eleven_is_refused() -> None:
    with pytest.raises(QdqError, match=r"11.0.0.* no calibration caches"):
        write_trtexec(job_of("11.0.0"))


@pytest.mark.parametrize(("version", "old"), [("8.6.2", False), ("10.7.0", True), ("10.12.0", True), ("10.16.1", True)])
def test_deprecated_flags_are_remarked_on(version: str, old: bool) -> None:
    text = said(job_of(version))
    assert ("removed in TensorRT 11" in text) is old
    assert ("--int8" in text) is (version in ("10.12.0", "10.16.1"))


def test_the_standalone_loadable_is_mentioned_where_it_can_be_made() -> None:
    assert "--buildDLAStandalone" in said(job_of("8.6.2", "dla"))
    assert "--buildDLAStandalone" not in said(job_of("8.5.2", "dla"))
    assert "--buildDLAStandalone" not in said(job_of("8.6.2", "gpu"))


def test_a_free_batch_gets_the_size_that_was_asked_for() -> None:
    job = job_of(inputs=(Tensor("x", FLOAT, (None, 3, 8, 8)), Tensor("k", FLOAT, (None, 2))), batch=4)
    assert arguments(job)["--shapes"] == "x:4x3x8x8,k:4x2"
    assert "--shapes" not in arguments(job_of())


@pytest.mark.parametrize("shape", [(1, 3, None, None), (None, 3, None, 8), None])
def test_other_free_sizes_are_left_to_the_user(shape: tuple[int | None, ...] | None) -> None:
    job = job_of(inputs=(Tensor("x", FLOAT, shape),))
    assert "--shapes" not in arguments(job)
    assert any("--minShapes" in warning for warning in write_trtexec(job).warnings)


def test_layers_that_cannot_be_named_are_listed_and_never_printed() -> None:
    job = job_of(layers=(layer("ok"), layer("", node="a,b", unnamed="its name has a character", typed=True)))
    assert arguments(job)["--layerPrecisions"] == "ok:fp16"
    assert re.search("# trtexec .*float: Conv a,b: .*character", said(job))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(("length", "long"), [(131_071, False), (131_072, True)])
def test_an_argument_longer_than_linux_takes_is_warned_about(length: int, long: bool) -> None:
    job = job_of(layers=(layer("a" * (length - len("--layerPrecisions=:fp16"))),))
    word = max(trtexec_arguments(job), key=len)
    assert len(word) == length
    assert any("Linux" in warning for warning in write_trtexec(job).warnings) is long
    with pytest.raises(OSError, match="too long") if long else contextlib.nullcontext():
        subprocess.run(["true", word], check=True)


def test_a_shell_hands_over_the_very_words(tmp_path: Path) -> None:
    job = job_of(model="../it's $HOME/m x.onnx", cache="m.cache", layers=(layer("/a/Conv"), layer("b$(touch x)")))
    assert run_script(job, tmp_path) == trtexec_arguments(job)
    assert run_script(job, tmp_path, "--verbose")[-1] == "--verbose"
    assert not (tmp_path / "x").exists()


def test_a_name_cannot_leave_its_comment(tmp_path: Path) -> None:
    job = job_of(layers=(layer("", node="a\ntouch here", unnamed="x\ny"),))
    run_script(job, tmp_path)
    assert not (tmp_path / "here").exists()


def test_what_must_be_known_before_a_build_is_in_the_head() -> None:
    assert "# warning: a core holds 4" in said(job_of(target="dla", remarks=("a core holds 4",)))
    assert "# warning" not in said(job_of(target="dla"))


def test_the_same_job_gives_the_same_bytes() -> None:
    assert write_trtexec(job_of()).text == write_trtexec(job_of()).text
    assert shlex.split(write_trtexec(job_of()).text, comments=True)[-1] == "$@"


@pytest.mark.parametrize(
    ("version", "typed", "flags"),
    [
        ("8.6.1", False, ["--int8", "--fp16"]),
        ("10.3.0", False, ["--int8", "--fp16"]),
        ("10.3.0", True, ["--stronglyTyped"]),
        ("10.16.1", True, ["--stronglyTyped"]),
        ("11.1.0", True, []),
        ("11.1.0", False, []),
    ],
)
def test_a_file_that_says_the_types_is_built_by_them(version: str, typed: bool, flags: list[str]) -> None:
    words = qdq_arguments("q.onnx", "q", "gpu", parse(version), typed=typed)
    assert words == ["--onnx=q.onnx", *flags, "--saveEngine=q.engine"]


def test_the_script_finds_trtexec_where_jetpack_puts_it() -> None:
    text = write_trtexec(job_of()).text
    assert 'trtexec="${TRTEXEC:-$(command -v trtexec || echo /usr/src/tensorrt/bin/trtexec)}"' in text
    assert 'exec "$trtexec" ' in text
