# SPDX-License-Identifier: Apache-2.0
"""lint beside NVIDIA's own parser on hundreds of graphs: agreement by code, and the reason of each disagreement.

    python -m tests.bench.parser_agreement [--only mutants,corpus,foreign,typed] [--json OUT]

Needs TensorRT for RTX (docs/tensorrt_rtx.md) and, for corpus and foreign files, the shared material. Nothing is built
and nothing runs on a GPU. Exits with 1 where a disagreement has no reason in rules/parser_messages.toml.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from qdqtool import insert
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.linting.check_parser import agreeing_codes, load_parser_messages
from qdqtool.linting.checks import checks_of, run_checks
from qdqtool.linting.lint_context import LintContext
from qdqtool.tensorrt_rtx.installed import require_library
from qdqtool.tensorrt_rtx.parser import parse_opened, sentence_of
from qdqtool.trtversion import TrtVersion
from tests.bench.parser_mutants import mutants
from tests.bench.shared_material import SHARED
from tests.rtx.parse_many import parse_many
from tests.rtx.typed_graphs import typed_graphs

VERSION = TrtVersion(11, 0, 0)
_OWN = frozenset({"Q050", "Q051"})


@dataclass(frozen=True)
class Judged:
    """One graph, and what both judges say of it.

    Attributes:
        family: axis, type, zero-point, scale, opset, rank, form, block, corpus, foreign (Q/DQ
            of other quantizers), float (graphs that are hard to read) or typed.
        name: of the graph.
        errors: codes of lint's errors; "unreadable" where lint refuses to open it.
        refusals: the parser's messages; empty where it accepts the graph.
        same: codes that say of the refused node what the parser says.
    """

    family: str
    name: str
    errors: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    same: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Who refuses it."""
        return {(True, True): "both", (True, False): "lint", (False, True): "parser"}.get(
            (bool(self.errors), bool(self.refusals)), "neither"
        )

    def reasons(self) -> list[str]:
        """Why the judges differ, one sentence for each; an empty one for what has no reason."""
        table = load_parser_messages()
        if self.verdict == "lint":
            return [table.accepted.get(code, "") for code in self.errors]
        if self.verdict == "parser":
            rules = [table.kind_of(message) for message in self.refusals]
            warned = f"lint warns of it: {', '.join(self.same)}." if self.same else ""
            return [warned or (rule.reason if rule is not None else "") for rule in rules]
        return []


def judge(family: str, name: str, source: onnx.ModelProto | Path) -> Judged | None:
    """Both verdicts; None for what neither can open."""
    try:
        opened = open_model(source)
    except QdqError:
        return None
    verdict = parse_opened(opened, library=require_library())
    context = LintContext(opened, "gpu", VERSION, verdict=verdict)
    refusals = tuple(one.message for one in verdict.refusals)
    return Judged(family, name, _errors(context), refusals, agreeing_codes(context))


def judge_typed() -> Iterator[Judged]:
    """Both verdicts on single operators with float types that agree or do not, parsed in one child process."""
    found = [(one, context) for one in typed_graphs(full=False) if (context := _context(one.model)) is not None]
    parsed = parse_many((one.model.SerializeToString() for one, _ in found), require_library().python)
    for (one, context), verdict in zip(found, parsed, strict=True):
        refusals = () if verdict.accepted else (sentence_of(verdict.message),)
        yield Judged("typed", f"{one.name}: {one.types}", _errors(context), refusals)


def _context(source: onnx.ModelProto | Path) -> LintContext | None:
    try:
        opened = open_model(source)
    except QdqError:
        return None
    return LintContext(opened, "gpu", VERSION)


def _errors(context: LintContext) -> tuple[str, ...]:
    found = run_checks(context, [check for check in checks_of() if check.code not in _OWN])
    return tuple(sorted({finding.code for finding in found if finding.severity == "error"}))


def graphs(only: Sequence[str]) -> Iterator[tuple[str, str, onnx.ModelProto | Path]]:
    """Every graph that is asked for."""
    if "mutants" in only:
        yield from ((one.family, one.name, one.model) for one in mutants())
    corpus = SHARED / "corpus"
    if "foreign" in only:
        for folder, family in (("qdq", "foreign"), ("structure", "float")):
            yield from ((family, path.stem, path) for path in sorted((corpus / folder).glob("*.onnx")))
    if "corpus" in only:
        for path in sorted((corpus / "models").glob("*.onnx")):
            yield "corpus", path.stem, insert(onnx.load(path)).model


def report(rows: Sequence[Judged]) -> list[str]:
    """The tables as Markdown."""
    verdicts = ("both", "neither", "lint", "parser")
    families = dict.fromkeys(row.family for row in rows)
    counts = {family: Counter(row.verdict for row in rows if row.family == family) for family in families}
    lines = ["| family | graphs | both refuse | both accept | lint alone | parser alone |", "|---|---|---|---|---|---|"]
    for family, count in counts.items():
        lines.append(f"| {family} | {sum(count.values())} | {' | '.join(str(count[one]) for one in verdicts)} |")
    total = Counter(row.verdict for row in rows)
    lines.append(f"| all | {len(rows)} | {' | '.join(str(total[one]) for one in verdicts)} |")
    lines += ["", "| code | refused too | the same node | accepted | reason |", "|---|---|---|---|---|"]
    accepted = load_parser_messages().accepted
    for code in sorted({code for row in rows for code in row.errors}):
        refused = [row for row in rows if code in row.errors and row.refusals]
        same = sum(code in row.same for row in refused)
        built = sum(code in row.errors and not row.refusals for row in rows)
        reason = (accepted.get(code) or "NONE") if built else ""
        lines.append(f"| {code} | {len(refused)} | {same} | {built} | {reason} |")
    alone: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.verdict == "parser":
            rule = load_parser_messages().kind_of(row.refusals[0])
            alone[rule.name if rule else row.refusals[0], row.reasons()[0]] += 1
    lines += ["", "| refused by the parser alone | graphs | reason |", "|---|---|---|"]
    lines += [f"| {name} | {count} | {reason or 'NONE'} |" for (name, reason), count in alone.most_common()]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print the tables, and say whether a disagreement has no reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="mutants,foreign,corpus,typed", help="which graphs, with commas between them")
    parser.add_argument("--json", metavar="OUT", help="every graph with both verdicts")
    args = parser.parse_args(arguments)
    only = args.only.split(",")
    with ThreadPoolExecutor(2) as pool:
        judged = list(pool.map(lambda one: judge(*one), graphs(only)))
    rows = [row for row in judged if row is not None]
    rows += judge_typed() if "typed" in only else ()
    print("\n".join(report(rows)))
    print(f"\nneither opens: {judged.count(None)}; TensorRT for RTX {require_library().version}; lint for {VERSION}")
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    bare = [row for row in rows if not all(row.reasons())]
    for row in bare:
        print(f"without a reason: {row.family}, {row.name}: lint {row.errors}, parser {row.refusals}", file=sys.stderr)
    return 1 if bare else 0


if __name__ == "__main__":
    sys.exit(main())
