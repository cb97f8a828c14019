# SPDX-License-Identifier: Apache-2.0
"""Class names and the words of labels that mean them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.class_names import LEFT_OUT, parse_names, refuse_too_many


def test_a_list_numbers_the_classes_in_order() -> None:
    names = parse_names("car, traffic light,person")
    assert names.shown == ("car", "traffic light", "person")
    assert [names.number("x", word) for word in ("car", "Traffic Light", " person ")] == [0, 1, 2]


def test_a_word_that_is_longer_than_a_file_name_may_be_is_an_error() -> None:
    with pytest.raises(QdqError, match="cannot be read"):
        parse_names("a" * 300)


def test_several_words_may_mean_one_class_and_some_none() -> None:
    names = parse_names("face=with_mask|without_mask,none=poster|statue,hand")
    assert names.shown == ("face", "hand")
    assert [names.number("x", word) for word in ("with_mask", "without_mask", "hand")] == [0, 0, 1]
    assert names.number("x", "statue") == LEFT_OUT
    with pytest.raises(QdqError, match=r"'face', .* 2 names"):
        names.number("x", "face")


def test_a_file_has_one_class_per_line(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text("car, red\nvan=van|Truck\n\n", encoding="utf-8")
    names = parse_names(str(path))
    assert names.shown == ("car, red", "van")
    assert names.number("x", "truck") == 1


def test_a_word_that_is_near_is_guessed() -> None:
    with pytest.raises(QdqError, match=r"labels.xml: .* 'perso'.*person.*none=perso"):
        parse_names("car,person").number("labels.xml", "perso")


def test_numbers_are_checked_against_the_names() -> None:
    names = parse_names("a,b")
    assert [names.checked("x", number) for number in (0, 1)] == [0, 1]
    for number in (-1, 2):
        with pytest.raises(QdqError, match=f"class {number}, there are 2 names"):
            names.checked("x", number)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a,b,A", "names 'A' twice"),
        ("a,,b", "empty name"),
        ("a=b|,c", "empty name"),
        ("=x", "empty name"),
        ("none=x", "names no class"),
        ("absent.txt", "cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(text: str, part: str) -> None:
    with pytest.raises(QdqError, match=part):
        parse_names(text)


def test_one_class_is_counted_as_one() -> None:
    with pytest.raises(QdqError, match=r"80 classes, .* 1 class; "):
        refuse_too_many(80, 1)
    refuse_too_many(80, None)
