# SPDX-License-Identifier: Apache-2.0
"""The command line: find the verb, parse, call, turn what happened into an exit code. Each verb has a file here."""

from __future__ import annotations

import _thread
import argparse
import contextlib
import difflib
import errno
import importlib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn, cast

from qdqtool import __version__
from qdqtool.cli.color import MODES, painted
from qdqtool.cli.foreign_words import foreign_option, foreign_verb, tao_answer
from qdqtool.cli.heartbeat import heartbeat
from qdqtool.cli.missing import with_all
from qdqtool.cli.output import flush_stdout, warn
from qdqtool.cli.project import with_project
from qdqtool.cli.replaced_files import files_there, refuse_dash, replaced
from qdqtool.cli.streams import checked_streams
from qdqtool.cli.untrusted import FLAG, is_untrusted, missing_limits, run_limited
from qdqtool.errors import MissingPackageError, QdqError, printable
from qdqtool.trtversion import parse

# The description of the project: README.md, the wheel and the site have the same words.
SUMMARY = (
    "qdqtool quantizes ONNX models for TensorRT, to INT8 (Q/DQ nodes or a calibration cache), FP8, INT4 and NVFP4, "
    "and measures the accuracy loss."
)

# What verbs are for -> verb -> what `qdqtool -h` says of it. The module qdqtool.cli.<verb> is imported when it is used.
GROUPS = {
    "make: write a model, a cache or an engine": {
        "deploy": "try ways to INT8 for a board, measure each on the task, and write a folder that builds there",
        "run": "run the steps of a recipe; steps whose inputs did not change are not run again",
        "insert": "place Q/DQ where TensorRT fuses, with calibrated, given or estimated scales",
        "peel": "remove Q/DQ: write the clean model and a TensorRT calibration cache",
        "ptq": "calibrate a plain model, as TensorRT's calibrator does: a cache of all tensors",
        "graft": "put a calibration cache into a plain model as Q/DQ, for TensorRT 8 to 11",
        "calibrate": "run data through a model and write the scale of every tensor",
        "amp": "give a model FP16 or BF16 where its values allow that, for strongly typed TensorRT",
        "cache": "show, check, compare, merge and convert calibration caches, carry them to another version",
        "build": "build an engine: ahead of time on a CPU for RTX, or by the TensorRT that is installed",
    },
    "judge: measure and check": {
        "evaluate": "measure a model on its task: top-1, average precision, or agreement with its FP32 original",
        "compare": "compare two models tensor by tensor, and find the operators that cause the error",
        "lint": "find the faults of a model for TensorRT's INT8, and repair those with a safe remedy",
        "forecast": "say without data whether INT8, FP8 or INT4 is faster than FP16 on a board, and how sure that is",
        "bench": "measure the latency of models in onnxruntime, or of engines in TensorRT, side by side",
        "report": "write an offline HTML report of a model: types, scales, losses, findings",
    },
    "improve: lose less, or compute less": {
        "improve": "recover accuracy of a Q/DQ model, step by step, until the loss is small enough",
        "condition": "edit weights so that a model quantizes better: equalize, smooth, shift, clip, correct",
        "finetune": "fine-tune the weights of a Q/DQ model for INT8, without labels or with them",
        "sensitivity": "rank operators by what they lose in INT8, each alone and at the outputs",
        "prune": "remove whole channels from a plain or Q/DQ model, checked against the masked original",
    },
    "inspect: show details": {
        "infer": "draw what a model finds in images: boxes, or the best classes",
        "simulate": "run an INT8 model on a CPU as TensorRT should compute it, on a GPU or a DLA",
        "engine": "show the layers of a built engine beside the predicted ones, or compare two engines",
        "demo": "run the main verbs on a small bundled model, in a new folder",
        "init": "write a project file: model, data and labels that verbs in this folder take where none are given",
        "doctor": "check the installation: packages, versions, what each verb needs",
        "completion": "print the completion script for bash, zsh or fish",
    },
}
VERBS = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}
_FIRST = ("forecast", "deploy", "insert", "peel", "evaluate", "report", "lint")  # what `qdqtool` alone prints
_EXAMPLE = "qdqtool insert model.onnx --data images/ --preprocess yolov8"
_SHORT = frozenset(
    {"positional arguments", "options", "optional arguments", "data", "how long"}
)  # groups that -h prints

_ALIKE = 0.75  # difflib's ratio from which a word may be meant
_FEWER_SAMPLES = "--effort fast uses fewer samples; for still fewer, give --data a folder or an array with fewer"
_AGAIN = 0.02  # seconds until an interrupt that came during an import is tried again
EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 70, 130, 141
# What the system says of a path before anybody could look what is there. A missing file is each reader's own matter.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_TMPDIR = "TMPDIR"
_PASSING = frozenset({errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOLCK, errno.ESTALE, errno.ETIMEDOUT})
_REFUSED_PATHS = _FULL | _PASSING | {
    errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EROFS, errno.EMLINK, errno.EXDEV,
}  # fmt: skip


class _HelpAction(argparse._HelpAction):
    """`-h` prints the main options, `--help` all."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        """Print the help and exit."""
        short = option_string == "-h" and isinstance(parser, Parser)
        sys.stdout.write(cast("Parser", parser).format_short_help() if short else parser.format_help())
        parser.exit()


class Parser(argparse.ArgumentParser):
    """argparse with a short help beside the full one, and one-line usage errors that guess what was meant."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how, add_help=False)
        self.add_argument("-h", "--help", action=_HelpAction, help="print the main options; --help prints all")

    def format_short_help(self) -> str:
        """The help without the groups that few need: their titles are named at the end."""
        hidden = [
            group
            for group in self._action_groups
            if group.title not in _SHORT
            and any(action.help != argparse.SUPPRESS for action in group._group_actions)
            and not any(action.required for action in group._group_actions)
        ]
        left = {id(action) for group in hidden for action in group._group_actions}
        shown = [action for action in self._actions if id(action) not in left]
        exclusive = [
            group
            for group in self._mutually_exclusive_groups
            if not any(id(action) in left for action in group._group_actions)
        ]
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, shown, exclusive)
        formatter.add_text(self.description)
        for group in self._action_groups:
            if group not in hidden:
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        if hidden:
            titles = "; ".join(str(group.title) for group in hidden)
            formatter.add_text(f"{self.prog} --help has more options: {titles}.")
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """Print one line, which quotes words as a terminal can show them, and exit with 2."""
        verb, said = self.prog.removeprefix("qdqtool "), printable(message)
        sys.stderr.write(f"qdqtool: error: {verb}: {said}; see {self.prog} --help\n")
        raise SystemExit(EXIT_USAGE)

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Refuse options that the verb lacks, naming the nearest one it has."""
        known = [option for action in self._actions for option in action.option_strings]
        answer = tao_answer(words[0])
        if answer:
            self.error(f"unknown argument {words[0]}, which is TAO's: {answer}")
        if answer := foreign_option(words[0]):
            self.error(f"unknown argument {words[0]}: {answer}")
        name = words[0].partition("=")[0]
        if name == "--limit" and {"--data", "--effort"} <= set(known):
            self.error(f"there is no --limit: {_FEWER_SAMPLES}")
        near = _meant(name, known)
        self.error(f"unknown argument {words[0]}" + (f", did you mean {near[0]}" if near else ""))


def main(argv: Sequence[str], *, limited: bool = False) -> int:
    """Run one command; `limited` says that this process is the child of one that is `--untrusted`."""
    with checked_streams() as out, painted(argv):
        code = _run(argv, limited=limited)
        if code not in (0, 1) or out.fault is None:
            return code
        if isinstance(out.fault, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        fault = QdqError("stdout", f"cannot be written ({out.fault.strerror})", "send it to another place")
        sys.stderr.write(f"qdqtool: error: {fault.line()}\n")
        return EXIT_USAGE


def _run(argv: Sequence[str], *, limited: bool) -> int:
    """Run one command, and turn what it raises into a line and an exit code."""
    verbose = any(word in ("-v", "--verbose") for word in argv)
    apart = not limited and bool(argv) and is_untrusted(argv)
    try:
        with _terminable(), heartbeat("" if apart or _is_quiet(argv) else argv[0]):
            try:
                words = argv if limited else with_project(argv, parser_of)
                if apart and not _is_quiet(argv) and (missing := missing_limits()):
                    sys.stderr.write(f"qdqtool: note: this system has no {missing}; use a container\n")
                code = run_limited(words) if apart else dispatch(words)
            finally:
                flush_stdout()  # before a line on stderr says what was raised
        sys.stdout.flush()  # a reader that is gone is found out here, not when the interpreter ends
    except QdqError as error:
        if verbose:
            traceback.print_exc()
        if isinstance(error, MissingPackageError):
            error = with_all(error, argv)
        elif _is_temporary(error.where):
            error = _full_temporary(error.reason)
        sys.stderr.write(f"qdqtool: error: {error.line()}\n")
        return error.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE if stop.code else 0
    except KeyboardInterrupt as interrupt:
        sys.stderr.write(f"qdqtool: interrupted{f'; {interrupt}' if str(interrupt) else ''}\n")
        return EXIT_INTERRUPTED
    except Exception as error:
        return _unexpected(error, verbose=verbose, limited=limited)
    return code


def _is_quiet(argv: Sequence[str]) -> bool:
    return not argv or any(word in ("-q", "--quiet") for word in argv)


def _unexpected(error: Exception, *, verbose: bool, limited: bool) -> int:
    """Report what was raised that is no QdqError: a path that the system refuses, no more memory, else our bug.

    Of an untrusted file a bug is what the file does: one line, too.
    """
    fault = None
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        fault = QdqError("memory", f"is not enough ({str(error) or 'none is left'})", "give fewer or smaller samples")
    elif isinstance(error, OSError) and error.errno in _REFUSED_PATHS:
        name = None if error.filename is None else os.fsdecode(error.filename)
        if name is not None and not _is_temporary(name):
            todo = "run it again later" if error.errno in _PASSING else "check the path and its permissions"
            fault = QdqError(name, str(error.strerror), todo)
        elif name is not None or error.errno in _FULL:  # writing to an open file has no name
            fault = _full_temporary(f"cannot be written ({error.strerror})")
    elif isinstance(error, FileNotFoundError) and _temporary() == _TMPDIR:
        fault = QdqError(_TMPDIR, str(error.strerror), "set it to a folder that takes files")
    if limited and fault is None:
        reason = f"raises {type(error).__name__} ({printable(str(error), 300)}), which is a bug in qdqtool"
        fault = QdqError("the input", reason, f"run it without {FLAG} where that is safe, and report the lines")
    if verbose or fault is None:
        traceback.print_exception(error)
    if fault is not None:
        sys.stderr.write(f"qdqtool: error: {fault.line()}\n")
        return EXIT_USAGE
    sys.stderr.write(
        "qdqtool: this is a bug in qdqtool: please report the lines above and what `qdqtool doctor` says\n"
    )
    return EXIT_BUG


def _is_temporary(name: str) -> bool:
    """Whether a file is one of a run's own, whose name says nothing to a user."""
    return name.startswith(os.path.join(_temporary(), "qdqtool-"))  # noqa: PTH118 - of any text


def _full_temporary(reason: str) -> QdqError:
    return QdqError(f"{_temporary()}, for temporary files", reason, "set TMPDIR to another folder")


def _temporary() -> str:
    """The folder for temporary files, or the variable where no folder takes any."""
    import tempfile

    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return _TMPDIR


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGINT and SIGTERM end the command by KeyboardInterrupt: files that are half written are taken away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler):  # not where it is ignored
        ours.append(signal.SIGINT)
    before = {number: signal.signal(number, _interrupt) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, after the import that is going on.

    A class body makes a RuntimeError of it, a callback nothing, and a module in C may crash.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            again = threading.Timer(_AGAIN, _thread.interrupt_main, (number,))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def dispatch(argv: Sequence[str], said: set[str] | None = None) -> int:
    """Run one command, without turning faults into exit codes.

    Args:
        argv: the words behind `qdqtool`.
        said: of commands of one run, the notes that are printed once for all.

    Raises:
        QdqError: what the verb raises; an unknown verb.
        SystemExit: argparse's, after its line on stderr.
    """
    if list(argv[:1]) == ["help"] and len(argv) > 1:
        argv = [argv[1], "--help"]
    if not argv:
        sys.stdout.write(_start())
        return EXIT_USAGE
    if argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_overview())
        return 0
    if argv[0] in ("-V", "--version"):
        sys.stdout.write(f"qdqtool {__version__}\n")
        return 0
    verb = argv[0]
    if verb not in VERBS:
        if answer := foreign_verb(verb):
            raise QdqError(verb, f"no such verb: {answer}", "see qdqtool -h")
        near = _meant(verb, list(VERBS))
        raise QdqError(verb, "no such verb" + (f", did you mean {near[0]}" if near else ""), "see qdqtool -h")
    parser, run = parser_of(verb)
    args, unknown = parser.parse_known_args(joined(argv[1:]))
    if unknown:
        parser.refuse_unknown(unknown)
    refuse_dash(verb, args)
    args.words = tuple(argv)  # for hints that repeat the command
    args.said = said
    before = files_there(verb, args)
    code = int(run(args))
    _tell_unknown_version(verb, args)
    for path in replaced(before):
        warn(f"{path} was there and was replaced", args, "note")
    return code


def _tell_unknown_version(verb: str, args: argparse.Namespace) -> None:
    """Say that no such TensorRT is known; verbs that write caches say it themselves, with what it means for a cache."""
    text = getattr(args, "trt_version", None)
    if text is None or verb in ("cache", "peel", "ptq"):
        return

    if note := parse(str(text)).unknown_note:
        warn(note, args)


def parser_of(verb: str, kind: type[Parser] = Parser) -> tuple[Parser, Callable[[argparse.Namespace], int]]:
    """The parser of a verb, and what runs what it has parsed."""
    parser = kind(prog=f"qdqtool {verb}", description=VERBS[verb], allow_abbrev=False)
    return parser, fill_parser(parser, verb)


def fill_parser(parser: argparse.ArgumentParser, verb: str) -> Callable[[argparse.Namespace], int]:
    """Declare in a parser what a verb takes; what runs what it has parsed."""
    module = importlib.import_module(f"qdqtool.cli.{verb}")
    module.add_arguments(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="print more details, and tracebacks")
    parser.add_argument(
        "--color",
        choices=MODES,
        default="auto",
        help="color in the terminal; NO_COLOR in the environment turns auto (the default) off",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only errors and results")
    parser.add_argument(FLAG, action="store_true", help="run in a child process with limits of memory and time")
    return cast("Callable[[argparse.Namespace], int]", module.run)


def joined(words: Sequence[str]) -> list[str]:
    """`--input-range -1:1` as one word: argparse takes a value that begins with a minus for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and re.match(r"-\.?\d", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _meant(word: str, known: Sequence[str]) -> list[str]:
    """The known word that another begins, or is nearly; none where it is far from all."""
    begun = [name for name in known if len(word.lstrip("-")) > 2 and name.startswith(word)]
    return begun[:1] or difflib.get_close_matches(word, known, 1, _ALIKE)


def _start() -> str:
    width = max(map(len, _FIRST))
    rows = "".join(f"  {verb:<{width}}  {VERBS[verb]}\n" for verb in _FIRST)
    return f"usage: qdqtool VERB MODEL [options]\n\n{rows}\nexample: {_EXAMPLE}\nqdqtool -h lists all verbs.\n"


def _overview() -> str:
    width = max(map(len, VERBS))
    parts = []
    for title, verbs in GROUPS.items():
        rows = "\n".join(f"  {verb:<{width}}  {text}" for verb, text in verbs.items())
        parts.append(f"{title}\n{rows}\n")
    return (
        "usage: qdqtool VERB MODEL [options]\n\n"
        f"{SUMMARY}\n\n"
        + "\n".join(parts)
        + "\nqdqtool VERB -h prints the main options of a verb, qdqtool help VERB all options.\n"
        "qdqtool --version prints the version.\n"
    )
