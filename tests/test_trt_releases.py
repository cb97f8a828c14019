# SPDX-License-Identifier: Apache-2.0
"""The table of releases: in order, each board software once, and nothing documented without its source."""

from __future__ import annotations

from qdqtool.trt_releases import KNOWN, MAX_OPSET
from qdqtool.trtversion import RELEASES, TrtVersion


def test_releases_stand_in_the_order_of_their_versions() -> None:
    numbers = [one.numbers for one in KNOWN]
    assert numbers == sorted(numbers)
    assert [one.version for one in RELEASES] == [TrtVersion(*given) for given in numbers]


def test_a_release_has_at_most_one_row_of_each_status_without_boards() -> None:
    bare = [(one.numbers, one.status) for one in KNOWN if not one.platforms]
    assert len(bare) == len(set(bare))


def test_every_board_software_has_one_release() -> None:
    names = [name for one in KNOWN for name in one.platforms]
    assert len(names) == len(set(names))
    assert {name.split()[0] for name in names} == {"JetPack", "DRIVE"}


def test_what_is_documented_says_where_and_what_is_not_says_so() -> None:
    for one in KNOWN:
        assert one.see and (one.see == "from memory") is (one.status == "guess"), one.numbers


def test_the_highest_opset_never_falls_and_is_of_releases_that_exist() -> None:
    opsets = [MAX_OPSET[key] for key in sorted(MAX_OPSET)]
    assert opsets == sorted(opsets)
    assert all(any(one.numbers[: len(key)] == key for one in KNOWN) for key in MAX_OPSET)
