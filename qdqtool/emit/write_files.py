# SPDX-License-Identifier: Apache-2.0
"""What `peel` and `ptq` hand to the writers of `qdqtool.emit`, and where their files go. Not what stands in them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from qdqtool.cache.text import Cache
from qdqtool.data.preprocess import Preprocess, parse_preprocess
from qdqtool.dla.assignment import DlaReport, dla_findings
from qdqtool.emit import ENDINGS, EmitJob, Emitted, emit
from qdqtool.emit.deepstream_network import ROW, DeepStreamNetwork, label_file
from qdqtool.emit.input_shapes import tensors_of
from qdqtool.emit.job import Tensor
from qdqtool.emit.layers import FloatLayer, Sources, find_float_layers, name_unnamed
from qdqtool.errors import QdqError
from qdqtool.evaluation.coco_names import shown_names
from qdqtool.files import FileSet
from qdqtool.graph.model import Model
from qdqtool.graph.opset_lower import opset_warnings
from qdqtool.graph.output_rows import output_rows
from qdqtool.graph.types import float_tensors
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import Plan
from qdqtool.match.shared_scales import unequal_inputs
from qdqtool.rulebook import RuleBook
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.data.loader import DataOptions
    from qdqtool.trtversion import TrtVersion

_SHOWN = 6
_LABELS = ".labels.txt"
_UNWRITABLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]")
_SCRIPTS = frozenset({"trtexec"})
_BY_NAME = frozenset({"trtexec", "deepstream", "json"})  # these know layers by name only


class EmitOptions(Protocol):
    """What a verb that emits files is asked for: options of `peel` and of `ptq`."""

    @property
    def emit(self) -> tuple[str, ...]:
        """Kinds of files."""

    @property
    def emit_dir(self) -> str | Path | None:
        """Their folder; None for that of the cache."""

    @property
    def names(self) -> str | None:
        """The model's classes, as `--names` gives them."""

    @property
    def keeps_model(self) -> bool:
        """Whether the model is not written, so that its nodes get no names."""

    @property
    def max_batch(self) -> int | None:
        """The most samples in one run; None for one size."""

    @property
    def target(self) -> str:
        """Whose cache it is."""

    @property
    def trt_version(self) -> TrtVersion:
        """For which version."""

    @property
    def data_options(self) -> DataOptions | None:
        """How data is read."""


def check_kinds(options: EmitOptions) -> None:
    """Refuse a kind of file that there is no writer for, and names that no file would hold.

    Raises:
        QdqError: the nearest kind is named, or all of them.
    """
    if options.names is not None and "deepstream" not in options.emit:
        raise QdqError("--names", "is for the files of Gst-nvinfer", "add --emit deepstream, or leave it out")
    for kind in options.emit:
        if kind not in ENDINGS:
            near = difflib.get_close_matches(kind, ENDINGS, 1)
            todo = f"did you mean {near[0]}" if near else f"there are {', '.join(ENDINGS)}"
            raise QdqError(f"--emit {kind}", "is not a kind of file that --emit writes", todo)


def emit_places(options: EmitOptions, cache: Path | None) -> dict[str, Path]:
    """Kind -> the file it goes to: beside the cache, or in `emit_dir`; none where no cache is written.

    Raises:
        QdqError: the folder does not exist.
    """
    if cache is None:
        return {}
    folder = cache.parent if options.emit_dir is None else Path(options.emit_dir)
    if options.emit and not folder.is_dir():
        raise QdqError(folder, "is not a folder", "make it, or name another one")
    endings = {kind: ending for kind, ending in ENDINGS.items() if kind in options.emit}
    if options.names is not None:
        endings["labels"] = _LABELS
    return {kind: folder / (cache.stem + ending) for kind, ending in endings.items()}


@dataclass(frozen=True)
class CacheJob:
    """A plain model, its cache and what is known of both, when everything is decided and nothing is written.

    Attributes:
        clean: the model.
        rules: of the target and version.
        plan: its heads and groups.
        int8_nodes: first outputs of the weighted operators that may run in INT8.
        cache: what is written beside it.
        table: what calibration left in the metadata: it may know the preprocessing.
    """

    clean: Model
    rules: RuleBook
    plan: Plan
    int8_nodes: Collection[str]
    cache: Cache
    table: ScaleTable

    @property
    def view(self) -> GraphView:
        """The graph of the model."""
        return self.clean.view


def emitted_texts(
    found: CacheJob, options: EmitOptions, model: Path | None, cache: Path | None
) -> tuple[dict[str, Emitted], list[str]]:
    """The text of each file asked for, and warnings.

    Nodes without a name that need one get it in the clean model, save in a source that is given back as it was.

    Raises:
        QdqError: one of the builders cannot express the model.
    """
    if not options.emit:
        return {}, []
    layers = float_layers(found)
    if not options.keeps_model:
        layers = name_unnamed(found.view, layers)
    folder = None if options.emit_dir is None else Path(options.emit_dir)
    folder = cache.parent if folder is None and cache is not None else folder
    named = (path for path in (model, cache) if path is not None)
    refuse_unwritable(named, "--emit", "give another name, or leave --emit out")
    inputs, outputs = tensors_of(found.clean.proto)
    dla = _on_dla(found, options)
    stem = "model" if cache is None else cache.stem
    job = EmitJob(
        model=_seen_from(folder, model, "model.onnx"),
        cache=_seen_from(folder, cache, "model.cache"),
        stem=stem,
        target=options.target,
        version=options.trt_version,
        layers=tuple(layers),
        scales=found.cache.entries,
        inputs=inputs,
        outputs=outputs,
        batch=options.max_batch or (1 if options.data_options is None else options.data_options.batch),
        max_batch=options.max_batch,
        preprocess=_preprocess(options, found.table),
        data=_data(options, found.table),
        remarks=(*opset_warnings(found.clean.proto, options.trt_version), *(dla.overflow() if dla else ())),
        network=network_of_graph(found.view, outputs, options.names, f"{stem}{_LABELS}"),
    )
    texts = emit(job, options.emit)
    if job.network is not None:
        texts["labels"] = Emitted(label_file(job.network))
    notes = [f"--emit {kind}: {note}" for kind, emitted in texts.items() for note in emitted.warnings]
    return texts, notes + (_unnamed_notes(job.unnamed) if _BY_NAME & texts.keys() else [])


def _on_dla(found: CacheJob, options: EmitOptions) -> DlaReport | None:
    """What the DLA runs of the model; None for a GPU."""
    if options.target != "dla":
        return None
    weighted = {node.key for node in found.view.nodes if weight_index(found.view, node) is not None}
    return dla_findings(found.view, options.trt_version, floats=weighted - set(found.int8_nodes))


def float_layers(found: CacheJob) -> list[FloatLayer]:
    """The layers that a builder must be told to keep out of INT8, by the names that the model has."""
    known = Sources(
        heads=found.plan.heads,
        int8_nodes=found.int8_nodes,
        floats=frozenset(float_tensors(found.clean)) | found.cache.entries.keys(),
        scaled=found.cache.entries.keys(),
        markers=found.rules.heads.markers,
        unequal=unequal_inputs(found.view, found.rules, found.cache.entries),
    )
    return find_float_layers(found.view, found.rules.policy, known)


def refuse_unwritable(paths: Iterable[Path], what: str, todo: str) -> None:
    """Refuse names that a script cannot hold: a line break in one would begin a line of its own there.

    Raises:
        QdqError: a name has a control character or bytes that are no UTF-8.
    """
    for path in paths:
        if _UNWRITABLE.search(str(path)):
            reason = f"has a control character or bytes that are not text in its name, which {what} cannot write"
            raise QdqError(repr(str(path)), reason, todo)


def write_emitted(texts: Mapping[str, Emitted], places: Mapping[str, Path], files: FileSet) -> dict[str, Path | str]:
    """Write each text where it goes, in a set of files; kind -> the file, or the text itself where there is none."""
    found: dict[str, Path | str] = {}
    for kind, emitted in texts.items():
        if kind not in places:
            found[kind] = emitted.text
            continue
        with files.open(places[kind], executable=kind in _SCRIPTS) as file:
            file.write(emitted.text.encode("utf-8"))
        found[kind] = places[kind]
    return found


def _unnamed_notes(lost: Sequence[FloatLayer]) -> list[str]:
    """A sentence on the layers that no flag can name, with the first of them."""
    if not lost:
        return []
    shown = ", ".join(f"{layer.op} {layer.node} ({layer.unnamed})" for layer in lost[:_SHOWN])
    more = f" and {len(lost) - _SHOWN} more" if lost[_SHOWN:] else ""
    return [f"trtexec and DeepStream have no name for {len(lost)} layers that stay in float: {shown}{more}"]


def _seen_from(folder: Path | None, path: Path | None, otherwise: str) -> str:
    """A file as a file in that folder names it."""
    if path is None:
        return otherwise
    return path.name if folder is None else Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix()


def _data(options: EmitOptions, table: ScaleTable) -> Mapping[str, object]:
    """What is known of the data that the model is fed: of the calibration, then what the user says."""
    given = _preprocess(options, table)
    return {**(table.provenance.data or {}), **({"preprocess": str(given)} if given is not None else {})}


def _preprocess(options: EmitOptions, table: ScaleTable) -> Preprocess | None:
    """What is done to images: what the user says, else what the calibrated table remembers."""
    given = options.data_options.preprocess if options.data_options is not None else None
    if given is None:
        given = table.provenance.preprocess
    return parse_preprocess(given) if isinstance(given, str) else given


def network_of_graph(
    view: GraphView, outputs: Sequence[Tensor], names: str | None, labels: str
) -> DeepStreamNetwork | None:
    """What Gst-nvinfer makes of the outputs, by the graph and its class names; None without names, which it needs.

    `deploy` runs the model, so that the values of the outputs tell a detector's family (`workflows/deploy_network.py`).

    Raises:
        QdqError: names that cannot be read.
    """
    if names is None:
        return None
    shown = shown_names(names)
    (shape,) = (one.shape for one in outputs) if len(outputs) == 1 else (None,)
    rows = output_rows(view).get(outputs[0].name) if shape is not None and len(shape) == 3 and shape[2] == ROW else None
    if rows is not None:
        family = "rows" if rows == "dense" else "nms"
        return DeepStreamNetwork("detector", family, shown, rows=True, suppressed=rows == "picked", labels=labels)
    if shape is not None and shape[1:2] == (len(shown),) and all(side == 1 for side in shape[2:]):
        return DeepStreamNetwork("classifier", names=shown, labels=labels)
    return DeepStreamNetwork(names=shown, labels=labels)
