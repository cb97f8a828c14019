# SPDX-License-Identifier: Apache-2.0
"""`qdqtool calibrate`: a model and data to a table of scales. Parses arguments and prints results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.amax.method_table import METHODS
from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from, print_notes
from qdqtool.cli.declared import add_options
from qdqtool.cli.next_steps import after_calibrate, after_shard
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.errors import QdqError
from qdqtool.files import replacing
from qdqtool.observers.options import LONG_RUNS, CalibrationOptions

if TYPE_CHECKING:
    from qdqtool.scales import ScaleTable

_KEEPING = ("checkpoint", "resume")
_SHOWN = 8
_DEFAULT = "(default auto; mse in shards, and for weights that condition edited)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="the ONNX model, which is not changed")
    add_data_arguments(parser)
    *words, last = (one.spelling for one in METHODS.values())
    parser.add_argument("--method", metavar="M", help=f"{', '.join(words)} or {last} {_DEFAULT}")
    parser.add_argument("-o", "--output", metavar="OUT", help="default: beside MODEL, with .scales.json for its ending")
    parser.add_argument("--json", action="store_true", help="print JSON")
    group = parser.add_argument_group(LONG_RUNS)
    add_options(group, CalibrationOptions, only=_KEEPING)
    group.add_argument("--shard", metavar="I/N", help="calibrate on every N-th batch only, and write the state to OUT")
    group.add_argument(
        "--merge", metavar="STATE", nargs="+", type=Path, help="merge the states of all shards into a scale table"
    )
    group.add_argument("--dask", metavar="WHERE", help="a Dask scheduler's address, or local:N for N workers here")
    group.add_argument("--dask-shards", metavar="N", type=int, help="how many shards (default 4 per worker)")
    group.add_argument(
        "--dask-ship",
        action="store_true",
        help="send model and data to the workers, where they cannot read these paths",
    )


def run(args: argparse.Namespace) -> int:
    """Calibrate, write the table or the state, say what is in it."""
    _check(args)
    if args.shard:
        return _run_shard(args)

    model = Path(args.model or "")
    output = Path(args.output) if args.output else model.parent / f"{model.stem}.scales.json"
    _check_places(args, output)
    table = _table(args)
    print_notes(table, args)
    if args.data is not None and args.preprocess is None and table.provenance.preprocess:
        warn(f"images are preprocessed as the model's file says: {table.provenance.preprocess}", args, kind="note")
    with replacing(output) as file:
        file.write(table.to_json().encode("utf-8", "backslashreplace"))
    if args.checkpoint is not None:  # its work is in the table now
        args.checkpoint.unlink(missing_ok=True)
    if args.json:
        facts: dict[str, Any] = {"file": str(output), "scales": len(table), "unscaled": table.unscaled}
        print_json({**facts, **table.facts_json()})
    else:
        print_lines(_summary(args, table, output), args)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse words that do not go together, before anything is read."""
    if args.merge is not None:
        for option, given in (("MODEL", args.model), ("--data", args.data), ("--shard", args.shard)):
            if given:
                raise QdqError("--merge", f"takes the states of shards, not {option}", f"leave {option} out")
        if not args.output:
            raise QdqError("--merge", "needs the name of the table", "give -o scales.json")
        return
    if not args.model or args.data is None:
        raise QdqError(
            "calibrate",
            "needs a model and data (MODEL and one of --data, --data-loader-script, --load-inputs)",
            "see qdqtool calibrate --help",
        )
    if args.resume and args.checkpoint is None:
        raise QdqError("--resume", "continues from a checkpoint, and none is named", "give --checkpoint F")
    if args.dask and (args.shard or args.checkpoint):
        raise QdqError("--dask", "makes shards by itself and keeps no checkpoint", "leave --shard and --checkpoint out")


def _check_places(args: argparse.Namespace, output: Path) -> None:
    """Refuse places that would do harm before anything is done."""
    from qdqtool.output_paths import check_targets, check_weights, files_of

    inputs = [*filter(None, [args.model]), *files_of(args.data), *(args.merge or [])]
    check_targets({"the result": output, "--checkpoint": args.checkpoint}, inputs)
    check_weights(output, args.model)


def _options(args: argparse.Namespace) -> CalibrationOptions:
    return calibration_options_from(args, also=_KEEPING)


def _table(args: argparse.Namespace) -> ScaleTable:
    if args.merge is not None:
        from qdqtool.distributed.shards import merge_files

        return merge_files(args.merge, args.method or "mse")
    if args.dask:
        from qdqtool.distributed.dask_calibration import DaskOptions, calibrate_on_dask

        dask = DaskOptions(args.dask, args.dask_shards, ship=args.dask_ship)
        return calibrate_on_dask(args.model, args.data, dask, _options(args), data_options_from(args))
    from qdqtool.calibration.engine import calibrate

    return calibrate(args.model, args.data, _options(args), data_options_from(args))


def _run_shard(args: argparse.Namespace) -> int:
    from qdqtool.distributed.shards import calibrate_shard, parse_shard
    from qdqtool.observers.state_file import write_state

    if not args.output:
        raise QdqError("--shard", "needs the name of the state", "give -o part.state")
    output, shard = Path(args.output), parse_shard(args.shard)
    _check_places(args, output)
    state = calibrate_shard(args.model, args.data, shard, _options(args), data_options_from(args))
    write_state(state, output, compress=True)
    if args.checkpoint is not None:
        args.checkpoint.unlink(missing_ok=True)
    facts = {"file": str(output), "shard": args.shard, "samples": state.observation.samples}
    if args.json:
        print_json(facts)
    else:
        lines = [f"{output}: shard {args.shard}, {facts['samples']} samples", *after_shard(args, output, shard[1])]
        print_lines(lines, args)
    return 0


def _summary(args: argparse.Namespace, table: ScaleTable, output: Path) -> list[str]:

    samples, method = table.provenance.samples, table.provenance.method
    lines = [f"{output}: {len(table)} tensors with a scale, method {method}, {samples} samples"]
    if table.unscaled:
        lines.append(f"{len(table.unscaled)} without:")
        lines += [f"  {name}: {reason}" for name, reason in list(table.unscaled.items())[:_SHOWN]]
        if len(table.unscaled) > _SHOWN:
            lines.append(f'  and {len(table.unscaled) - _SHOWN} more (in the file, under "unscaled")')
    return [*lines, *after_calibrate(args, output)]
