# SPDX-License-Identifier: Apache-2.0
"""The command line itself: help, versions, exit codes, the one form of errors, guesses at what was meant."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import qdqtool
from qdqtool.cli import foreign_words
from qdqtool.cli import main as command_line
from qdqtool.cli.main import SUMMARY, VERBS
from qdqtool.errors import MissingPackageError, QdqError
from tests.cli.command import refused, run, write_net

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_help_names_every_verb(capsys: Capsys, word: str) -> None:
    said = run(capsys, word)
    assert (said.code, said.err) == (0, "")
    for verb, text in VERBS.items():
        assert verb in said.out and text in said.out


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(capsys: Capsys, verb: str) -> None:
    said = run(capsys, verb, "-h")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"usage: qdqtool {verb} ")


@pytest.mark.parametrize(
    "verb", ["amp", "calibrate", "condition", "finetune", "graft", "insert", "peel", "prune", "ptq"]
)
def test_help_says_where_the_output_goes(capsys: Capsys, verb: str) -> None:
    assert "default: beside MODEL, with " in " ".join(run(capsys, verb, "-h").out.split())


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"cache", "engine"}))
def test_every_verb_on_a_model_speaks_json_and_can_be_quiet(capsys: Capsys, verb: str) -> None:
    said = run(capsys, verb, "-h")
    assert all(option in said.out for option in ("--json", "--quiet", "--verbose"))


def test_no_words_is_a_usage_error_that_shows_the_help(capsys: Capsys) -> None:
    said = run(capsys)
    lines = said.out.splitlines()
    assert said.code == 2 and lines[0].startswith("usage: qdqtool") and len(lines) <= 12
    assert [line.split()[0] for line in lines[2:9]] == [
        "forecast",
        "deploy",
        "insert",
        "peel",
        "evaluate",
        "report",
        "lint",
    ]
    assert any(line.startswith("example: qdqtool insert ") for line in lines)
    assert all(len(line) <= 110 for line in lines)


def test_the_project_has_one_description(capsys: Capsys) -> None:
    root = Path(__file__).resolve().parents[2]
    assert SUMMARY in run(capsys, "-h").out.splitlines()
    assert SUMMARY in (root / "README.md").read_text("utf-8").splitlines()
    for name in ("pyproject.toml", "mkdocs.yml"):
        assert SUMMARY in (root / name).read_text("utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_the_short_help_is_a_part_of_the_full_one(capsys: Capsys, verb: str) -> None:
    short, full = run(capsys, verb, "-h").out, run(capsys, verb, "--help").out
    assert len(short.splitlines()) <= len(full.splitlines()) + 2
    if "--help has more options" not in " ".join(short.split()):
        assert short == full


def test_the_short_help_of_insert_has_the_main_options(capsys: Capsys) -> None:
    short, full = run(capsys, "insert", "-h").out, run(capsys, "insert", "--help").out
    assert "--data" in short and "--condition" in short
    assert "--fold-constants" in full and "--fold-constants" not in short


@pytest.mark.parametrize("word", ["-V", "--version"])
def test_version(capsys: Capsys, word: str) -> None:
    said = run(capsys, word)
    assert (said.code, said.out, said.err) == (0, f"qdqtool {qdqtool.__version__}\n", "")


@pytest.mark.parametrize(
    ("word", "meant"), [("inser", "insert"), ("peal", "peel"), ("calibrat", "calibrate"), ("cahce", "cache")]
)
def test_a_verb_misspelt(capsys: Capsys, word: str, meant: str) -> None:
    refused(run(capsys, word, "m.onnx"), f"error: {word}: ", f" mean {meant}; ")


@pytest.mark.parametrize("word", [*foreign_words._VERBS, *foreign_words._SAME_VERBS])
def test_a_verb_of_another_tool_is_answered(capsys: Capsys, word: str) -> None:
    said = run(capsys, word, "m.onnx")
    refused(said, f"error: {word}: no such verb: {foreign_words.foreign_verb(word)}; ")
    assert set(said.err.replace(",", " ").replace(";", " ").split()) & set(VERBS)


@pytest.mark.parametrize("word", foreign_words._OPTIONS)
def test_an_option_of_another_tool_is_answered(capsys: Capsys, word: str) -> None:
    verb = "insert" if word in ("--use_amp", "--enable_qat", "--epochs") else "lint"
    said = run(capsys, verb, "m.onnx", word)
    refused(said, f"unknown argument {word}")
    assert " mean " not in said.err


@pytest.mark.parametrize("verb", ["deploy", "improve"])
@pytest.mark.parametrize("words", [("--limit", "8"), ("--limit=8",)])
def test_verbs_that_part_their_data_say_how_to_give_fewer_samples(
    capsys: Capsys, verb: str, words: tuple[str, ...]
) -> None:
    asked = ("--for", "8.6.1") if verb == "deploy" else ("--max-loss", "0.01")
    said = run(capsys, verb, "m.onnx", "--data", "d", "-o", "out", *asked, *words)
    refused(said, f"{verb}: there is no --limit: --effort fast ", "give --data a folder or an array with fewer; ")


def test_a_verb_like_no_other(capsys: Capsys) -> None:
    said = run(capsys, "xyzzy")
    refused(said, "xyzzy: ", "; see qdqtool -h")
    assert " mean " not in said.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["insert", "m.onnx", "--scale", "s.json"], "did you mean --scales"),
        (["insert", "m.onnx", "--float-head=all"], "did you mean --float-heads"),
        (["insert", "m.onnx", "--zzzzz"], "unknown argument --zzzzz"),
        (["insert", "m.onnx", "two.onnx"], "unknown argument two.onnx"),
        (["insert"], "the following arguments are required: MODEL"),
        (["insert", "m.onnx", "--target", "gpi"], "invalid choice: 'gpi'"),
        (["insert", "m.onnx", "--float-heads", "some"], "invalid choice: 'some'"),
        (["insert", "m.onnx", "--batch", "two", "--data", "d"], "--batch"),
        (["insert", "m.onnx", "--keep-float", "1,2"], "neither auto, nor a number, nor names of operators"),
        (["peel", "q.onnx", "--target", "gpu"], "--trt-version"),
        (["peel", "q.onnx", "--target", "gpu", "--trt-versoin", "7100"], "--trt-version"),
        (["peel", "q.onnx", "--trt-version", "7100"], "--target"),
        (["calibrate", "m.onnx"], "--data"),
        (["calibrate", "m.onnx", "--data", "d.npz", "--max-data", "lots"], "--max-data"),
    ],
)
def test_usage_errors_are_one_line_of_the_same_form(capsys: Capsys, words: list[str], part: str) -> None:
    refused(run(capsys, *words), f"error: {words[0]}: ", part, f"see qdqtool {words[0]} --help")


def test_abbreviated_options_are_not_guessed(capsys: Capsys) -> None:
    refused(run(capsys, "insert", "m.onnx", "--dry"), "argument --dry, ", "mean --dry-run")


def test_a_missing_package_is_3(capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(*_: object, **__: object) -> None:
        raise MissingPackageError("onnxruntime", "is not installed", 'pip install "qdqtool[cpu]"')

    monkeypatch.setattr("qdqtool.verbs.insert.insert", absent)
    refused(run(capsys, "insert", write_net(tmp_path)), 'pip install "qdqtool[cpu]"', code=3)


def test_without_onnxruntime_calibration_says_what_to_install(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = write_net(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for verb in ("calibrate", "insert"):
        said = run(capsys, verb, model, "--data", tmp_path / "d.npz", "-o", tmp_path / "out")
        refused(said, 'pip install "qdqtool[cpu]"', code=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "raised",
    [MemoryError(), MemoryError("Unable to allocate 392. MiB"), OSError(errno.ENOMEM, "Cannot allocate memory")],
)
def test_no_more_memory_is_one_line_and_no_bug(
    raised: Exception, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("qdqtool.verbs.insert.insert", fail)
    refused(run(capsys, "insert", write_net(tmp_path)), "memory: ")


def test_our_bug_is_70_with_a_traceback(capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("qdqtool.verbs.insert.insert", lambda *_, **__: 1 // 0)
    said = run(capsys, "insert", write_net(tmp_path))
    assert said.code == 70 and "ZeroDivisionError" in said.err and "bug in qdqtool" in said.err


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EFBIG, "File too large"),
        OSError(errno.ENOSPC, "No space left on device", str(Path(tempfile.gettempdir(), "qdqtool-x1y2", "m.onnx"))),
        QdqError(Path(tempfile.gettempdir(), "qdqtool-x1y2", "m.onnx"), "cannot be written (No space left on device)"),
    ],
)
def test_a_full_disk_for_temporary_files_is_2_and_names_none_of_them(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("qdqtool.verbs.insert.insert", full)
    said = run(capsys, "insert", write_net(tmp_path))
    refused(said, f"{tempfile.gettempdir()}, for temporary files: ", "set TMPDIR")
    assert "x1y2" not in said.err


@pytest.mark.parametrize(
    ("number", "todo"),
    [
        (errno.EACCES, "check the path and its permissions"),
        (errno.EMLINK, "check the path and its permissions"),
        (errno.EBUSY, "run it again later"),
        (errno.EMFILE, "run it again later"),
    ],
)
def test_what_the_system_says_of_a_path_is_2_and_names_it(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, todo: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "no words", "work/command")

    monkeypatch.setattr("qdqtool.verbs.insert.insert", fail)
    refused(run(capsys, "insert", write_net(tmp_path)), "work/command: no words", todo)


def test_no_folder_for_temporary_files_is_2_and_names_the_variable(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setattr("qdqtool.verbs.insert.insert", nowhere)
    refused(run(capsys, "insert", write_net(tmp_path)), "TMPDIR: No usable temporary directory", "set it to a folder")

    def refuse(*_: object, **__: object) -> None:
        raise QdqError("q.onnx", "no")

    monkeypatch.setattr("qdqtool.verbs.insert.insert", refuse)
    refused(run(capsys, "insert", write_net(tmp_path)), "q.onnx: no")


def test_an_interrupt_is_130_without_a_traceback(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qdqtool.verbs.insert.insert", stopped)
    said = run(capsys, "insert", write_net(tmp_path))
    assert (said.code, said.err) == (130, "qdqtool: interrupted\n")


def test_an_interrupt_waits_for_the_import_that_is_going_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised in it, it may become another error, or none, or end the process in C."""
    monkeypatch.syspath_prepend(tmp_path)
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nassert sum(range(10**6))\ndone = True\n"
    (tmp_path / "half_imported.py").write_text(text)
    with pytest.raises(KeyboardInterrupt), command_line._terminable():
        module = importlib.import_module("half_imported")
        assert module.done
        for _ in range(400):  # the interrupt is seen between two
            time.sleep(0.05)


def test_an_interrupt_while_the_command_line_is_imported_ends_it_without_a_word(tmp_path: Path) -> None:
    text = (
        "import importlib.abc, os, signal, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'qdqtool.cli.main': os.kill(os.getpid(), signal.SIGINT)\n"
        "from qdqtool.__main__ import run\n"
        "sys.meta_path.insert(0, Finder())\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", text, "doctor"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_verbose_shows_where_a_fault_was_seen(capsys: Capsys, tmp_path: Path) -> None:
    said = run(capsys, "insert", tmp_path / "no.onnx", "-v")
    assert said.code == 2 and "Traceback" in said.err
    assert f"qdqtool: error: {tmp_path / 'no.onnx'}: does not exist" in said.err


def test_control_characters_in_a_name_do_not_break_the_line(capsys: Capsys) -> None:
    refused(run(capsys, "insert", "no\nsuch\x1b[31m.onnx"), "no\\nsuch\\x1b[31m.onnx")


@pytest.mark.parametrize("word", ["\x1b[2J", "--\x1b[2J", "--opset=\x1b[2J"])
def test_control_characters_in_a_word_that_is_not_understood_are_escaped(capsys: Capsys, word: str) -> None:
    refused(run(capsys, "insert", "m.onnx", word), "\\x1b[2J")


@pytest.mark.slow
@pytest.mark.parametrize("words", ["-h", "insert m.onnx --dry-run"])
def test_a_reader_that_goes_away_is_no_bug(tmp_path: Path, words: str) -> None:
    """`qdqtool insert --dry-run | head -1`: silent, and the code a shell gives for SIGPIPE."""
    write_net(tmp_path)
    script = f"{sys.executable} -m qdqtool {words} 2>err | true; echo ${{PIPESTATUS[0]}}"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}  # stdout is buffered here
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert (done.stdout.strip(), (tmp_path / "err").read_text()) == (str(command_line.EXIT_BROKEN_PIPE), "")


# ---------------------------------------------------------------------- as a program


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "qdqtool", *words], capture_output=True, text=True, check=False)


def test_an_error_comes_behind_the_lines_that_were_printed(tmp_path: Path) -> None:
    code = (
        "import sys, qdqtool.cli.main as command_line\n"
        "from qdqtool.errors import QdqError\n"
        "def dispatch(words):\n"
        "    print('first')\n"
        "    raise QdqError('x', 'is wrong')\n"
        "command_line.dispatch = dispatch\n"
        "sys.exit(command_line.main(['lint']))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run([sys.executable, "-c", code], stdout=log, stderr=log, check=False, env=environment)
    assert (done.returncode, (tmp_path / "log").read_text()) == (2, "first\nqdqtool: error: x: is wrong\n")


@pytest.mark.slow
def test_the_program_gives_codes_and_streams(tmp_path: Path) -> None:
    model = write_net(tmp_path)
    good, bad, usage = program("insert", str(model), "-q"), program("insert", "no.onnx"), program("insrt")
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    assert (bad.returncode, bad.stdout) == (2, "") and bad.stderr.count("\n") == 1
    assert (usage.returncode, usage.stdout) == (2, "") and "mean insert" in usage.stderr


@pytest.mark.parametrize(
    "words", [["-h"], ["--version"], ["insert", "-h"], ["peel", "-h"], ["calibrate", "-h"], ["xx"]]
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    """What makes start-up slow is imported libraries; so those are counted, not time."""
    code = (
        "import sys; from qdqtool.cli.main import main; main(sys.argv[1:]); "
        "heavy = {'onnx', 'numpy', 'onnxruntime', 'tqdm', 'PIL', 'polygraphy', 'onnx_graphsurgeon', 'google'}; "
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("3", "3")])
def test_one_thread_for_matrix_products_unless_the_environment_says_otherwise(given: str | None, threads: str) -> None:
    """Another number of threads gives other last bits; NumPy reads it when it loads."""
    code = (
        "import os, sys, qdqtool.__main__ as program, qdqtool.cli.main as command_line\n"
        "command_line.main = lambda words, limited: print('numpy' in sys.modules, os.environ['OPENBLAS_NUM_THREADS'])\n"
        "program.run()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if given is not None:
        environment["OPENBLAS_NUM_THREADS"] = given
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", threads]
