# SPDX-License-Identifier: Apache-2.0
"""The table of trtexec's flags: what each release takes, against what its published sources were seen to parse."""

from __future__ import annotations

import pytest

from qdqtool.emit.trtexec_flags import FLAGS, flag, has_flag, is_deprecated, require_flag
from qdqtool.errors import QdqError
from qdqtool.trtversion import RELEASES, TrtVersion

# First and last release branch of NVIDIA/TensorRT whose samples/common/sampleOptions.cpp parses the flag, of the
# branches 6.0 7.0 7.1 7.2 8.0 8.2 8.4 8.5 8.6 9.0 9.1 9.2 9.3 10.0 to 10.16 11.0 11.1; read there, not in our table.
SEEN = {
    "--onnx": ("6.0", "11.1"),
    "--saveEngine": ("6.0", "11.1"),
    "--int8": ("6.0", "10.16"),
    "--fp16": ("6.0", "10.16"),
    "--calib": ("6.0", "10.16"),
    "--precisionConstraints": ("8.2", "10.16"),
    "--layerPrecisions": ("8.4", "10.16"),
    "--layerOutputTypes": ("8.4", "10.16"),
    "--useDLACore": ("6.0", "11.1"),
    "--allowGPUFallback": ("6.0", "11.1"),
    "--buildDLAStandalone": ("8.6", "11.1"),
    "--inputIOFormats": ("6.0", "11.1"),
    "--outputIOFormats": ("6.0", "11.1"),
    "--shapes": ("6.0", "11.1"),
    "--explicitBatch": ("6.0", "9.3"),
    "--workspace": ("6.0", "9.3"),
    "--memPoolSize": ("8.4", "11.1"),
    "--stronglyTyped": ("9.0", "11.1"),
    "--best": ("7.1", "10.16"),
    "--bf16": ("9.0", "10.16"),
}
BRANCHES = [
    "6.0",
    "7.0",
    "7.1",
    "7.2",
    "8.0",
    "8.2",
    "8.4",
    "8.5",
    "8.6",
    "9.0",
    "9.1",
    "9.2",
    "9.3",
    "10.0",
    "10.1",
    "10.2",
    "10.3",
    "10.4",
    "10.5",
    "10.6",
    "10.7",
    "10.8",
    "10.9",
    "10.10",
    "10.11",
    "10.12",
    "10.13",
    "10.14",
    "10.15",
    "10.16",
    "11.0",
    "11.1",
]


def release(branch: str) -> TrtVersion:
    """The newest release of a branch that is known; branches end with their last patch."""
    major, minor = map(int, branch.split("."))
    known = [r.version for r in RELEASES if (r.version.major, r.version.minor) == (major, minor)]
    return max(known, default=TrtVersion(major, minor, 0))


@pytest.mark.parametrize("name", SEEN)
def test_a_flag_is_taken_by_the_branches_that_parse_it_and_no_other(name: str) -> None:
    first, last = (BRANCHES.index(branch) for branch in SEEN[name])
    taken = [branch for branch in BRANCHES if has_flag(name, release(branch))]
    assert taken == BRANCHES[first : last + 1]


def test_every_row_was_seen_and_says_where() -> None:
    assert {row.name for row in FLAGS if row.status == "documented"} == set(SEEN)
    assert len({row.name for row in FLAGS}) == len(FLAGS)
    assert all(row.see and row.why and row.name.startswith("--") for row in FLAGS)


def test_precision_constraints_came_with_the_release_not_the_early_access() -> None:
    assert not has_flag("--precisionConstraints", TrtVersion(8, 2, 0))
    assert has_flag("--precisionConstraints", TrtVersion(8, 2, 1))


@pytest.mark.parametrize("name", ["--int8", "--fp16", "--layerPrecisions", "--precisionConstraints", "--calib"])
def test_weak_typing_is_deprecated_by_10_12_and_gone_in_11(name: str) -> None:
    assert is_deprecated(name, TrtVersion(10, 12, 0)) and is_deprecated(name, TrtVersion(10, 16, 1))
    assert not is_deprecated(name, TrtVersion(8, 6, 2))
    assert not is_deprecated(name, TrtVersion(11, 0, 0)) and not has_flag(name, TrtVersion(11, 0, 0))


def test_calibrators_were_deprecated_before_weak_typing() -> None:
    assert is_deprecated("--calib", TrtVersion(10, 3, 0)) and not is_deprecated("--int8", TrtVersion(10, 3, 0))


def test_a_flag_that_is_not_taken_is_refused_with_the_versions_that_take_it() -> None:
    with pytest.raises(QdqError) as caught:
        require_flag("--int8", TrtVersion(11, 4, 1))
    assert caught.value.line() == "trtexec 11.4.1: does not know --int8; it is in >=6.0,<11"
    require_flag("--int8", TrtVersion(10, 16, 1))


def test_a_flag_without_a_row_is_our_fault() -> None:
    with pytest.raises(KeyError):
        flag("--nonsense")
