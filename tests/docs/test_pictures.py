# SPDX-License-Identifier: Apache-2.0
"""The drawings of the pages are those that the code makes today."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.docs.pages import DOCS
from tests.docs.pictures import IMAGES, METHODS, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_the_stored_picture_is_the_one_that_is_made(name: str) -> None:
    text = PICTURES[name]()
    assert (IMAGES / name).read_text(encoding="utf-8") == text, "python -m tests.docs.pictures makes it again"
    assert ET.fromstring(text).tag.endswith("svg")


def test_every_method_is_labeled() -> None:
    text = PICTURES["methods.svg"]()
    assert all(f">{method}: amax " in text for method in METHODS)


def test_every_picture_is_shown_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS)
    assert [file.name for file in IMAGES.iterdir() if f"images/{file.name}" not in pages] == []
