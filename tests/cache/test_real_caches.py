# SPDX-License-Identifier: Apache-2.0
"""Every published cache at hand: reads, comes back, is carried to other versions with the same bits (L4, L5).

What must be in each is counted here by a regular expression over its bytes, not by the reader under test.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qdqtool.cache.retarget import retarget
from qdqtool.cache.text import Cache, format_cache, parse_cache, read_cache
from qdqtool.cli.main import main
from qdqtool.errors import QdqError
from qdqtool.trtversion import parse

pytestmark = pytest.mark.shared

ENTRY = re.compile(rb"^(?!TRT-)(.+): ([0-9a-fA-F]{1,8})[ \t\r]*$", re.MULTILINE)
LEGACY = re.compile(rb"0 ?3ff")
UNUSABLE = (0, 0x7F800000)


@pytest.fixture(scope="module", params=["caches", "pairs"])
def paths(shared: Path, request: pytest.FixtureRequest) -> list[Path]:
    """The published caches, or those that came with the model or the data they were made from."""
    if request.param == "caches":
        found = [path for path in (shared / "trt" / "caches").iterdir() if path.name != "MANIFEST.tsv"]
    else:
        found = [path for path in (shared / "trt" / "pairs").rglob("*") if re.search("[cC]alibration", path.name)]
    assert found
    return sorted(found)


def raw(path: Path) -> dict[str, int]:
    """Name -> bits of every entry, unusable ones too."""
    return {name.decode(): int(digits, 16) for name, digits in ENTRY.findall(path.read_bytes())}


def usable(path: Path) -> dict[str, int]:
    return {name: word for name, word in raw(path).items() if word not in UNUSABLE}


def bits(cache: Cache) -> dict[str, int]:
    return {name: int.from_bytes(value.tobytes(), "little") for name, value in cache.entries.items()}


def test_every_cache_reads_to_the_bit(paths: list[Path]) -> None:
    for path in paths:
        cache = read_cache(path)
        assert bits(cache) == usable(path), path.name
        assert list(cache.entries) == list(usable(path)), path.name
        assert {name: int(digits, 16) for name, digits, _ in cache.dropped} == {
            name: word for name, word in raw(path).items() if word in UNUSABLE
        }, path.name


def test_the_manifest_counts_the_same(shared: Path) -> None:
    folder = shared / "trt" / "caches"
    rows = [line.split("\t") for line in (folder / "MANIFEST.tsv").read_text().splitlines()[1:]]
    assert {row[0] for row in rows} == {path.name for path in folder.iterdir()} - {"MANIFEST.tsv"}
    for name, *_, header, entries, _, _, _ in rows:
        cache = read_cache(folder / name)
        assert (cache.header, len(cache.entries) + len(cache.dropped)) == (header, int(entries)), name


def test_l4_on_every_cache(paths: list[Path]) -> None:
    for path in paths:
        cache = read_cache(path)
        text = format_cache(cache)
        assert parse_cache(text) == cache, path.name
        assert bits(parse_cache(text)) == usable(path), path.name
        assert len(text.splitlines()) == 1 + len(usable(path)), path.name


def test_l5_on_every_cache(paths: list[Path]) -> None:
    a, b = parse("7103"), parse("100300")
    for path in paths:
        cache = read_cache(path)
        if LEGACY.match(path.read_bytes()):
            with pytest.raises(QdqError, match="legacy calibrator"):
                retarget(cache, a)
            continue
        assert retarget(retarget(cache, a), b) == retarget(cache, b), path.name
        assert bits(retarget(cache, b)) == usable(path), path.name


def test_every_cache_through_the_command_line(
    paths: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    carried = refused = kept = dropped = 0
    for path in paths:
        before, output = path.read_bytes(), tmp_path / "o.cache"
        output.unlink(missing_ok=True)
        code = main(["cache", "retarget", str(path), "--trt-version", "8502", "-o", str(output), "--json"])
        out, err = capsys.readouterr()
        assert path.read_bytes() == before
        if LEGACY.match(before):
            assert (code, output.exists(), err.count("\n")) == (2, False, 1), path.name
            refused += 1
            continue
        assert code == 0, err
        facts = json.loads(out)
        assert raw(output) == usable(path), path.name
        assert re.match(rb"TRT-8502-(EntropyCalibration2|MinMaxCalibration)\n", output.read_bytes()), path.name
        assert (facts["entries"], facts["dropped"]) == (len(usable(path)), len(raw(path)) - len(usable(path)))
        carried, kept, dropped = carried + 1, kept + facts["entries"], dropped + facts["dropped"]
    assert carried + refused == len(paths)
    with capsys.disabled():
        print(
            f"\n{len(paths)} caches: {carried} carried, {refused} refused, {kept} entries to the bit, {dropped} dropped"
        )


@pytest.mark.slow
def test_show_reads_every_cache(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for path in paths:
        assert main(["cache", "show", str(path), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert {name: int(entry["scale"], 16) for name, entry in facts["entries"].items()} == usable(path), path.name
        assert facts["names_with_colon"] == [name for name in usable(path) if ":" in name]
        assert main(["cache", "show", str(path)]) == 0
        rows = capsys.readouterr().out.splitlines()
        assert sum(bool(re.search(r" [0-9a-f]{8}$", row)) for row in rows) == len(usable(path)), path.name


def test_every_header_number_is_a_version_we_know(paths: list[Path]) -> None:
    for path in paths:
        version = read_cache(path).version
        assert version is None or version.status == "documented", path.name
