# SPDX-License-Identifier: Apache-2.0
"""The documentation is run: commands, Python, rules, options, links and lists of README.md and docs/*.md are checked.

```console blocks are run line by line in a copy of models/; the lines below a `$ qdqtool ...` must come out of it, in
order; a command that must fail ends in `# exit N`. A number on a page may be rounded to the digits that hold on every
processor. ```python blocks are run there, or stored where they begin with
`# file: NAME`, as ```toml blocks are, which must also load as rules or recipes. In other blocks commands are parsed,
not run.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.cli import main as cli
from qdqtool.graph.view import GraphView
from qdqtool.recipe.read_recipe import read_recipe
from qdqtool.rulebook import load_rules
from qdqtool.trtversion import parse as parse_version
from tests.docs.pages import (
    DOCS,
    PAGES,
    PROJECT,
    VERB_PAGES,
    blocks_of,
    first_cells,
    options_of,
    parsers_of,
    prose_of,
    rows_of,
    words_in,
    words_of,
)
from tests.graph.detectors import rt_detr
from tests.graph.single_shot import yolov7_end2end

_OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
_EXPORTS = ("--profilingVerbosity", "--exportLayerInfo", "--exportProfile")
_TARGETS = ("--onnx", "--useDLACore", "--allowGPUFallback")
_OTHERS = {
    "trtexec": (
        "--int8",
        "--fp16",
        "--calib",
        "--best",
        "--layerPrecisions",
        "--stronglyTyped",
        "--saveEngine",
        *_TARGETS,
        *_EXPORTS,
    ),
    "polygraphy": ("--save-inputs", "--int8-sim", "--qdq-", "--gen-script", "--trt-npps"),
    "`saving`": ("--minutes",),
}
_POLYGRAPHY = PROJECT / "docs" / "polygraphy.md"
# Pages whose blocks take seconds: run by `make slow` and by .ci/run.
LONG = {
    *(
        "amp",
        "calibrate",
        "compare",
        "condition",
        "demo",
        "deploy",
        "detr",
        "doctor",
        "evaluate",
        "finetune",
        "graft",
        "improve",
    ),
    *("infer", "insert", "losses", "peel", "polygraphy", "prune", "ptq", "recipe", "report", "run", "scripting"),
    *("sensitivity", "simulate", "start", "tensorrt11", "testing"),
}
BY_COST = [pytest.param(page, marks=pytest.mark.slow) if page.stem in LONG else page for page in PAGES]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[-+]\d+)?)")


# ---------------------------------------------------------------------------------------------------- how pages begin

_OVERVIEWS = {PROJECT / "docs" / "index.md", PROJECT / "docs" / "howto" / "index.md"}  # they only lead to others


@pytest.mark.parametrize("page", [page for page in DOCS if page not in _OVERVIEWS], ids=lambda page: page.stem)
def test_a_page_begins_with_what_it_is_for_and_when_not(page: Path) -> None:
    title, blank, lead = page.read_text(encoding="utf-8").splitlines()[:3]
    assert title.startswith("# ") and not blank
    assert re.fullmatch(r"\*\*Use it\*\* .{15,260}\. \*\*Not\*\* .{15,260}\.", lead), lead


# ---------------------------------------------------------------------------------------------------- what is run


def write_user_files(folder: Path) -> None:
    """`model.onnx` and `images/`: the names that the start page gives to a reader's own files."""
    from PIL import Image

    shutil.copy(folder / "digits_detector.onnx", folder / "model.onnx")
    (folder / "images").mkdir()
    with np.load(folder / "digits_calib.npz") as archive:
        for number, image in enumerate(archive["images"][:12]):
            Image.fromarray((image[0] * 255).astype(np.uint8)).save(folder / "images" / f"{number}.png")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the bundled models to work in, under the names of the README too, and exports that pages start from."""
    for file in (PROJECT / "models").iterdir():
        if file.suffix in (".onnx", ".npz"):
            shutil.copy(file, tmp_path)
    shutil.copy(tmp_path / "digits_detector.onnx", tmp_path / "detector.onnx")
    shutil.copy(tmp_path / "digits_calib.npz", tmp_path / "calibration.npz")
    write_user_files(tmp_path)
    onnx.save(rt_detr().model, tmp_path / "detr.onnx")
    onnx.save(yolov7_end2end().model, tmp_path / "nms.onnx")
    np.savez(tmp_path / "pictures.npz", images=np.random.default_rng(2).random((32, 3, 64, 64), dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("qdqtool_data_")]:
        del sys.modules[name]


def commands_of(text: str) -> list[tuple[str, list[str]]]:
    """Each command of a console block with the lines that must come out of it."""
    commands: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif line.strip():
            assert commands, f"output before a command: {line}"
            commands[-1][1].append(line.rstrip())
    return commands


def shows(line: str, printed: str) -> bool:
    """Whether a line of a page is the printed line, its numbers as they are or rounded to fewer digits."""
    parts, others = _NUMBER.split(line), _NUMBER.split(printed)
    return len(parts) == len(others) and all(
        part == other or (place % 2 == 1 and _rounds_to(other, part))
        for place, (part, other) in enumerate(zip(parts, others, strict=True))
    )


def _rounds_to(number: str, shown: str) -> bool:
    """Whether a number lies within half a unit in the last place of another."""
    last = int(Decimal(shown).as_tuple().exponent)
    return abs(Decimal(number) - Decimal(shown)) <= Decimal((0, (5,), last - 1))


def run_command(where: str, command: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command, comments=True)
    assert words[0] == "qdqtool", f"{where}: only qdqtool is run here: {command}"
    wanted = re.search(r"# exit (\d+)$", command)
    capsys.readouterr()
    code = cli.main(words[1:])
    captured = capsys.readouterr()
    assert code == (int(wanted[1]) if wanted else 0), f"{where}: {command}\n{captured.err}"
    lines = iter([line.rstrip() for line in (captured.out + captured.err).splitlines()])
    for line in expected:
        assert any(shows(line, one) for one in lines), (
            f"{where}: {command}\ndoes not print (here): {line}\nbut:\n{captured.out}{captured.err}"
        )


def run_python(where: str, text: str) -> None:
    name = re.match(r"# file: (\S+)\n", text)
    if name:
        Path(name[1]).write_text(text, encoding="utf-8")
        return
    try:
        exec(compile(text, where, "exec"), {"__name__": "docs"})
    except Exception:
        pytest.fail(f"{where}\n{traceback.format_exc()}")


def load_toml(text: str, line: int) -> None:
    name = re.match(r"# file: (\S+)\n", text)
    path = Path(name[1] if name else f"rules_{line}.toml")
    path.write_text(text, encoding="utf-8")
    if "[[step]]" in text:
        assert read_recipe(path).steps
        return
    rules = load_rules("gpu", parse_version("8.6.1"), path)
    own = re.findall(r'^name = "(.+)"$', text, re.M)
    assert all(rules.rule(rule).why in text for rule in own)
    for key, first in re.findall(r'^(\w+) = \["([\w:-]+)"', text.partition("[heads]")[2], re.M):
        assert first in getattr(rules.heads, key)


@pytest.mark.parametrize("page", BY_COST, ids=[page.stem for page in PAGES])
def test_blocks_run(page: Path, bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    before = {file: file.read_bytes() for file in bench.rglob("*") if file.is_file()}
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        if block.kind == "console":
            for command, expected in commands_of(block.text):
                run_command(where, command, expected, capsys)
        elif block.kind == "python":
            run_python(where, block.text)
        elif block.kind == "toml":
            load_toml(block.text, block.line)
    changed = [file for file, data in before.items() if file.read_bytes() != data]
    assert changed == [], "an example changed its input"
    assert not list(bench.glob(".qdqtool*"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_are_not_run_parse(page: Path) -> None:
    for block in blocks_of(page):
        if block.kind in ("console", "python", "toml"):
            continue
        for line in re.findall(r"^qdqtool .+$", block.text, re.M):
            words = shlex.split(line, comments=True)
            parser = parsers_of(words[1])[0]
            _, unknown = parser.parse_known_args(words[2:])
            assert unknown == [], f"{page.name}:{block.line}: {line}"


def test_every_page_runs_a_command_and_python() -> None:
    for page in DOCS:
        kinds = {block.kind for block in blocks_of(page)}
        assert "python" in kinds or page.stem in ("rules", "index"), f"{page.name} shows no Python"
        assert "console" in kinds or page.stem == "scripting", f"{page.name} shows no command"


def test_the_runner_notices(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="does not print"):
        run_command("here", "qdqtool insert tiny_classifier.onnx --dry-run", ["no such line"], capsys)
    with pytest.raises(AssertionError, match="tiny_clasifier"):
        run_command("here", "qdqtool insert tiny_clasifier.onnx", [], capsys)
    with pytest.raises(AssertionError, match="--dry"):
        run_command("here", "qdqtool insert tiny_classifier.onnx --dry", [], capsys)
    with pytest.raises(pytest.fail.Exception, match="ZeroDivisionError"):
        run_python("here", "1 / 0\n")


def test_a_page_may_round_a_number_and_nothing_else() -> None:
    assert shows("loss: 5e-06 (0: none)", "loss: 5.2e-06 (0: none)")
    assert shows("loss: 5e-06 (0: none)", "loss: 5e-06 (0: none)")
    assert shows("17.4 dB of 3", "17.36 dB of 3")
    assert not shows("loss: 5.2e-06", "loss: 5e-06")
    assert not shows("17.4 dB", "17.46 dB")
    assert not shows("12 pairs", "13 pairs")
    assert not shows("12 pairs", "12 points")
    assert not shows("12 pairs", "12 pairs, 1 group")


# ---------------------------------------------------------------------------------------------------- options, words


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_option_has_its_row_and_every_row_its_option(verb: str) -> None:
    known, page = options_of(verb), VERB_PAGES[verb]
    documented = [word for word in first_cells(page, "option") if word.startswith("-")]
    assert sorted(documented) == sorted(known)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_choice_and_default_is_reported(verb: str) -> None:
    rows = rows_of(VERB_PAGES[verb], "option")
    for name, action in options_of(verb).items():
        for choice in action.choices or ():
            assert f"`{choice}`" in rows[name], f"{verb} {name} takes {choice}"
        if action.required:
            assert "required" in rows[name], f"{verb} {name} is required"
        elif (
            len([word for word in words_in(rows[name]) if word.startswith("--")]) == 1
        ):  # of options that share a row, most are told elsewhere
            told = [a or b for a, b in re.findall(r"`([^`]+)` \(default|[Dd]efault:? `?([\w.-]*\w)", rows[name])]
            default = action.default
            if action.choices and isinstance(default, str):
                assert default in told, f"{verb} {name} is {default} by default"
            elif isinstance(default, int | float) and action.nargs != 0 and action.type in (int, float):
                numbers = [word for word in told if re.fullmatch(r"[\d.e-]+", word)]
                assert all(float(word) == default for word in numbers), f"{verb} {name} is {default} by default"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_in_the_text_exist(page: Path) -> None:
    known = {name for verb in cli.VERBS for name in options_of(verb)} | {"-h", "--help"}
    for paragraph in prose_of(page).split("\n\n"):
        others = {option for program, options in _OTHERS.items() if program in paragraph for option in options}
        for code in re.findall(r"`([^`\n]+)`", paragraph):
            if code.split()[0] not in ("polygraphy", "pip"):
                unknown = set(_OPTION.findall(code)) - known - others
                assert not unknown, f"{page.name}: {code}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_resolve(page: Path) -> None:
    for target in _LINK.findall(prose_of(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            assert (page.parent / path).is_file(), f"{page.name}: {target}"
            assert not anchor, f"{page.name}: {target}: headings are not checked, link the page"


def test_files_that_the_readme_names_exist() -> None:
    names = [word for word in words_of(PROJECT / "README.md") if re.fullmatch(r"[\w.]+/[\w./]*", word)]
    assert names
    assert [name for name in names if not (PROJECT / name).exists()] == []


def test_the_table_of_verbs_is_the_list_of_verbs() -> None:
    table = first_cells(PROJECT / "docs" / "verbs.md", "verb")
    assert list(dict.fromkeys(cell.split()[0] for cell in table)) == list(cli.VERBS)
    for cell in table:
        verb, _, action = cell.partition(" ")
        names = [parser.prog.rpartition(" ")[2] for parser in parsers_of(verb)[1:]]
        assert (action in names) if names else not action
    shown = {cell.partition(" ")[2] for cell in table if cell.startswith("cache ")}
    assert shown == {parser.prog.rpartition(" ")[2] for parser in parsers_of("cache")[1:]}


def test_the_overview_names_every_verb_and_every_verb_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-h"]) == 0
    overview = capsys.readouterr().out
    for verb, page in VERB_PAGES.items():
        assert f"  {verb} " in overview
        assert page.read_text(encoding="utf-8").startswith(f"# {verb}: ")
        assert importlib.import_module(f"qdqtool.cli.{verb}").__doc__


def test_versions_in_the_text_parse() -> None:
    page = VERB_PAGES["cache"]
    line = next(line for line in prose_of(page).split("\n\n") if line.startswith("Versions are written"))
    versions = re.findall(r"`([\w.-]*\d[\w.-]*)`", line)
    assert len(versions) >= 9
    assert {parse_version(version).header_number for version in versions} >= {8502, 7100, 7103, 8001}


@pytest.mark.slow
def test_public_names_are_in_the_documentation() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in qdqtool.__all__ if not re.search(rf"\b{name}\b", text)] == []
    named = set(re.findall(r"(?<![\w.])qdqtool\.([A-Z]\w+)", text))
    assert named <= set(qdqtool.__all__)


def test_options_of_the_plug_in_are_those_there_are() -> None:
    plugin = importlib.import_module("qdqtool.polygraphy.run_plugin")
    loading, running = plugin.argument_groups()
    parser = argparse.ArgumentParser()
    loading.add_parser_args(parser)
    known = {word.removeprefix("--") for action in parser._actions for word in action.option_strings if "--q" in word}
    assert set(first_cells(_POLYGRAPHY, "option of `polygraphy run`")) == known | {running.get_name_opt()[1]}


def test_polygraphy_loaders_and_their_arguments_are_those_there_are() -> None:
    loaders = importlib.import_module("qdqtool.polygraphy")
    base = importlib.import_module("polygraphy.backend.base").BaseLoader
    classes = {name: one for name, one in vars(loaders).items() if isinstance(one, type) and issubclass(one, base)}
    pairs = [re.findall(r"\w[\w, ]*", word) for word in first_cells(_POLYGRAPHY, "loader")]
    reported: dict[str, str] = dict(pairs)
    assert set(reported) == set(classes) - {"BaseLoader"}
    for name, arguments in reported.items():
        assert arguments.split(", ") == list(inspect.signature(classes[name]).parameters)
    for function in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", prose_of(_POLYGRAPHY)):
        assert hasattr(loaders, function) or function in ("cache_path", "write_json_inputs")


_8502 = ("--target", "gpu", "--trt-version", "8502")


def exported(folder: Path) -> Path:
    """Layer information of one layer of the little classifier, with a name alone."""
    view = GraphView(onnx.load(folder / "tiny_classifier.onnx").graph)
    path = folder / "layers.json"
    path.write_text(json.dumps({"Layers": [view.nodes[0].name]}), encoding="utf-8")
    return path


@pytest.mark.slow
def test_json_keys_are_reported(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")

    def document(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert cli.main([*words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    insert = document("insert", "tiny_classifier.onnx", "--data", "digits8_calib.npz", "-o", "q.onnx")
    documents = {
        "insert": [insert, insert["points"][0], insert["heads"][0], insert["groups"][0]],
        "calibrate": [document("calibrate", "tiny_classifier.onnx", "--data", "digits8_calib.npz")],
        "peel": [document("peel", "q.onnx", *_8502, "--cache", "q.cache")],
        "ptq": [document("ptq", "tiny_classifier.onnx", "--data", "digits8_calib.npz", *_8502)],
        "infer": [
            inferred := document("infer", "tiny_classifier.onnx", "--data", "digits8_calib.npz", "-o", "pictures"),
            inferred["images"][0],
            inferred["images"][0]["classes"][0],
        ],
        "engine": [
            document("engine", "show", "tiny_classifier.onnx", "--predicted"),
            shown := document("engine", "show", str(exported(bench)), "--model", "tiny_classifier.onnx"),
            shown["layers"][0],
            shown["totals"],
            shown["comparison"],
            different := document("engine", "diff", "layers.json", "layers.json"),
            different["groups"][0],
        ],
        "graft": [document("graft", "tiny_classifier.onnx", "--cache", "tiny_classifier.cache")],
        "cache": [
            document("cache", "show", "q.cache"),
            document("cache", "check", "q.cache", "tiny_classifier.onnx"),
            document("cache", "diff", "q.cache", "tiny_classifier.cache"),
            document("cache", "retarget", "q.cache", "--trt-version", "7103"),
            document("cache", "merge", "q.cache", "tiny_classifier.cache", "--on-conflict", "max", "-o", "m.cache"),
            document("cache", "convert", "q.cache", "--to", "csv", "-o", "q.csv"),
        ],
    }
    for verb, found in documents.items():
        missing = [key for one in found for key in one if key not in words_of(VERB_PAGES[verb])]
        assert missing == [], f"docs/{verb}.md does not name {missing}"
