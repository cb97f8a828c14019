# SPDX-License-Identifier: Apache-2.0
"""What Gst-nvinfer is told of a model's outputs: a parser where one is known, else the tensors for the application."""

from __future__ import annotations

import configparser
from dataclasses import replace

import pytest

from qdqtool.emit.deepstream import write_deepstream
from qdqtool.emit.deepstream_network import DeepStreamNetwork, label_file, network_lines, with_network
from tests.emit.jobs import job_of

ROWS = DeepStreamNetwork("detector", "nms", ("a", "b c"), rows=True, suppressed=True, labels="labels.txt")


def groups_of(text: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


def test_rows_of_corners_have_the_parser_that_reads_them() -> None:
    groups = groups_of(write_deepstream(job_of(network=ROWS)).text)
    keys = groups["property"]
    assert (keys["network-type"], keys["num-detected-classes"], keys["labelfile-path"]) == ("0", "2", "labels.txt")
    assert keys["parse-bbox-func-name"] == "NvDsInferParseYolo" and keys["cluster-mode"] == "4"
    assert keys["custom-lib-path"].endswith("libnvdsinfer_custom_impl_Yolo.so") and "output-tensor-meta" not in keys
    assert groups["class-attrs-all"] == {"pre-cluster-threshold": "0.25", "topk": "300"}


def test_boxes_that_still_overlap_are_suppressed() -> None:
    groups = groups_of(write_deepstream(job_of(network=replace(ROWS, suppressed=False, iou=0.65))).text)
    assert groups["property"]["cluster-mode"] == "2" and groups["class-attrs-all"]["nms-iou-threshold"] == "0.65"


@pytest.mark.parametrize(
    "network",
    [
        None,
        DeepStreamNetwork(),
        DeepStreamNetwork("detector", "nanodet", ("a",), labels="labels.txt"),
        DeepStreamNetwork("detector", "yolov8", ("a",), labels="labels.txt"),
        replace(ROWS, names=(), labels=""),
    ],
)
def test_without_a_parser_the_application_gets_the_tensors(network: DeepStreamNetwork | None) -> None:
    text = write_deepstream(job_of(network=network)).text
    keys = groups_of(text)["property"]
    assert (keys["network-type"], keys["output-tensor-meta"]) == ("100", "1") and "parse-bbox-func-name" not in keys
    assert "labelfile-path" not in keys and (network is None or network.labels in text)
    assert "he application gets " in text


def test_yolos_are_told_of_deepstream_yolo_and_others_are_not() -> None:
    assert "utils/export_*.py" in network_lines(DeepStreamNetwork("detector", "yolox"))
    assert "Yolo" not in network_lines(DeepStreamNetwork("detector", "nanodet"))
    assert "give --names" in network_lines(replace(ROWS, names=()))


def test_a_classifier_is_one_and_its_labels_stand_in_one_line() -> None:
    network = DeepStreamNetwork("classifier", names=("cat", "big dog"), labels="labels.txt")
    keys = groups_of(write_deepstream(job_of(network=network)).text)["property"]
    assert (keys["network-type"], keys["labelfile-path"]) == ("1", "labels.txt") and "output-tensor-meta" not in keys
    assert label_file(network) == "cat;big dog\n" and label_file(ROWS) == "a\nb c\n"
    assert label_file(replace(ROWS, names=("a", "", "c"))) == "a\n-\nc\n"


def test_what_is_known_later_gives_the_same_text() -> None:
    assert with_network(write_deepstream(job_of()).text, ROWS) == write_deepstream(job_of(network=ROWS)).text
