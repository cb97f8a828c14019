# SPDX-License-Identifier: Apache-2.0
"""`--keep-float`: names, numbers and auto as they are typed, and one list of names for every verb that places pairs."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.main import main
from qdqtool.match.options import KeepFloat, keep_float, names_only, names_word
from tests.cli.command import pairs_of, refused, run, write_net
from tests.collapsing_nets import residual_net, samples

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("auto", KeepFloat("auto")),
        ("0", KeepFloat(0)),
        ("12", KeepFloat(12)),
        ("c1", KeepFloat(0, ("c1",))),
        ("c1, /a/Conv_2,c1", KeepFloat(0, ("c1", "/a/Conv_2"))),
        ("auto,c1", KeepFloat("auto", ("c1",))),
        ("c1,2", KeepFloat(2, ("c1",))),
        ("1234567890", KeepFloat(0, ("1234567890",))),
        ("188,", KeepFloat(0, ("188",))),
        ("188, c1,194,", KeepFloat(0, ("188", "c1", "194"))),
        ("auto,", KeepFloat(0, ("auto",))),
    ],
)
def test_what_is_typed(text: str, found: KeepFloat) -> None:
    assert keep_float(text) == found


@pytest.mark.parametrize("text", ["", ",", "a,,b", "auto,2", "1,2"])
def test_what_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="neither auto, "):
        keep_float(text)


@pytest.mark.parametrize("names", [("188",), ("188", "194"), ("c1", "c2"), ("auto",), ("c1", "7")])
def test_names_are_printed_as_they_are_read(names: tuple[str, ...]) -> None:
    """TorchScript names operators by numbers, and the next step of sensitivity must run."""
    assert names_only(names_word(names)) == names


def test_two_numbers_are_names_only_behind_a_comma() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"188,194.*comma"):
        keep_float("188,194")


@pytest.mark.parametrize("text", ["auto", "3", "auto,c1"])
def test_how_many_is_for_insert(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a list "):
        names_only(text)


@pytest.mark.parametrize("data", [(), ("--data", "d.npz")])
def test_insert_leaves_named_operators_in_float(
    data: tuple[str, ...], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_net(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "insert", "m.onnx", *data, "--float-heads", "none", "-o", "all.onnx").code == 0
    words = ("insert", "m.onnx", *data, "--float-heads", "none", "--keep-float", "c1", "-o", "q.onnx")
    said = run(capsys, *words)
    assert said.code == 0 and re.search("c1 stays in float: .*--keep-float", said.err)
    assert "x" in pairs_of(Path("all.onnx")) and "x" not in pairs_of(Path("q.onnx"))
    again = run(capsys, "insert", "q.onnx", *data, "--float-heads", "none", "-o", "r.onnx")
    assert again.code == 0
    if data:
        assert pairs_of(Path("r.onnx")) == pairs_of(Path("q.onnx")), "the model says what stays in float"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("nowhere", ["--keep-float nowhere: is not an operator of the model"]),
        ("c11", ["--keep-float c11: is not an operator of the model; near: c1"]),
        ("r1", ["--keep-float r1: is a Relu, which has no weight"]),
    ],
)
def test_names_that_no_weighted_operator_has(name: str, parts: list[str], tmp_path: Path, capsys: Capsys) -> None:
    said = run(capsys, "insert", write_net(tmp_path), "--keep-float", name, "--dry-run")
    refused(said, *parts)


def test_the_same_list_in_other_verbs(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    write_net(tmp_path)
    monkeypatch.chdir(tmp_path)
    data = ("--data", "d.npz", "--float-heads", "none")
    found = json.loads(run(capsys, "sensitivity", "m.onnx", *data, "--local", "--keep-float", "c1", "--json").out)
    assert "c1" not in {one["node"] for one in found["operators"]} and found["operators"]
    assert run(capsys, "condition", "m.onnx", *data, "--keep-float", "c1", "-o", "c.onnx").code == 0
    assert run(capsys, "insert", "m.onnx", *data, "--keep-float", "0", "-o", "q.onnx").code == 0
    assert run(capsys, "peel", "q.onnx", "--target", "gpu", "--trt-version", "8502", "--cache", "c.cache").code == 0
    said = run(capsys, "graft", "m.onnx", "--cache", "c.cache", "--keep-float", "c1", "-o", "g.onnx")
    assert said.code == 0 and "x" not in pairs_of(Path("g.onnx"))
    for verb in ("sensitivity", "condition"):
        refused(run(capsys, verb, "m.onnx", *data, "--keep-float", "2"), "--keep-float", "list of names")


@pytest.mark.slow
def test_sensitivity_says_the_loss_of_insert_and_a_next_step_that_runs(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(residual_net(2).SerializeToString())
    np.savez("d.npz", x=samples())
    said = run(capsys, "sensitivity", "m.onnx", "--data", "d.npz")
    assert said.code == 0, said.err
    ranked = json.loads(run(capsys, "sensitivity", "m.onnx", "--data", "d.npz", "--json").out)
    done = json.loads(
        run(capsys, "insert", "m.onnx", "--data", "d.npz", "--keep-float", "0", "--json", "-o", "q.onnx").out
    )
    assert ranked["loss"] == done["output_loss"]
    line = said.out.splitlines()[-1]
    assert line.startswith("next: qdqtool insert m.onnx --data d.npz")
    assert main(shlex.split(line)[2:]) == 0


def test_a_name_that_operators_share_keeps_none_of_them_in_float(tmp_path: Path, capsys: Capsys) -> None:
    """The last of them alone was kept."""
    model = onnx.load(write_net(tmp_path))
    convs = [node for node in model.graph.node if node.op_type == "Conv"]
    for node in convs:
        node.name = "conv"
    onnx.save(model, tmp_path / "m.onnx")
    said = run(capsys, "insert", tmp_path / "m.onnx", "--keep-float", "conv", "-o", tmp_path / "o.onnx")
    made = ", ".join(sorted(node.output[0] for node in convs))
    refused(said, "--keep-float conv: ", f": {made}")


@pytest.mark.parametrize("verb", ["insert", "graft", "sensitivity", "condition", "simulate", "amp"])
def test_a_version_or_rules_that_are_empty_are_refused(verb: str, tmp_path: Path, capsys: Capsys) -> None:
    """`--trt-version "$VERSION"` with nothing in it was taken for the newest."""
    write_net(tmp_path)
    more = ["--cache", tmp_path / "c.cache"] if verb == "graft" else ["--data", tmp_path / "d.npz"]
    words = [verb, tmp_path / "m.onnx", *more, *([] if verb == "sensitivity" else ["-o", tmp_path / "o.onnx"])]
    refused(run(capsys, *words, "--trt-version", ""), "a TensorRT version")
    if verb not in ("simulate", "amp"):
        refused(run(capsys, *words, "--rules", ""), "cannot be read")
