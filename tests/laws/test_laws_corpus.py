# SPDX-License-Identifier: Apache-2.0
"""The laws of design.md on every model at hand. L0 on every file stands in tests/graph/test_corpus_io.py."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.scales import Scale, ScaleTable
from tests.conftest import shared_folder
from tests.laws import law_checks as laws

_CORPUS = (shared_folder() or Path()) / "corpus"
TRAINED = sorted((_CORPUS / "models").glob("*.onnx"))
STRUCTURE = sorted((_CORPUS / "structure").glob("*.onnx"))
QDQ = sorted((_CORPUS / "qdq").glob("*.onnx"))
# Box regressions that a look at each detector's graph shows: convolutions whose map is decoded into corners.
BOX_HEADS = {
    "blazeface_front": 2,
    "fastestdet_coco": 1,
    "nanodet_m_320_coco": 3,
    "ultraface_rfb320": 4,
    "ultraface_rfb320_raw": 4,
    "ultraface_rfb320_simplified": 4,
    "ultraface_rfb640": 4,
    "ultraface_slim320": 4,
    "yolox_nano_coco": 3,
    "yunet_n_dynamic": 6,
    "yunet_s_320": 6,
}
pytestmark = pytest.mark.shared


@dataclass(frozen=True)
class CorpusCase:
    """A file, what `insert` made of it, and a folder to write to."""

    file: Path
    folder: Path
    table: ScaleTable
    done: verbs.InsertResult
    sha256: str

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.done.model, load_external_data=False)

    @property
    def data_folder(self) -> Path | None:
        """Where the external data lie, None where there are none."""
        return self.file.parent if any(t.external_data for t in self.model.graph.initializer) else None


def sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def case_of(file: Path, folder: Path, options: PlanOptions | None = None) -> CorpusCase:
    """`insert` with another scale for each point; skips what it refuses, which must be one line and write nothing."""
    before, output = sha256_of(file), folder / "q.onnx"
    try:
        plan = verbs.plan(file, options)
        standing = GraphView(laws.lifted(file).graph, file.parent).pairs
        table = laws.table_for(plan)
        table = ScaleTable({name: scale for name, scale in table.scales.items() if name not in standing})
        how = verbs.InsertOptions(plan=options or PlanOptions(), allow_empty=True)
        done = verbs.insert(file, scales=table, options=how, output=output)
    except QdqError as error:
        assert "\n" not in error.line() and error.todo and not output.exists()
        pytest.skip(f"refused: {error.line()}")
    return CorpusCase(file, folder, table, done, before)


@pytest.fixture(scope="module", params=laws.few_at_once(TRAINED), ids=[file.stem for file in TRAINED])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CorpusCase:
    return case_of(request.param, tmp_path_factory.mktemp(request.param.stem))


# Forty odd structures, some of them large networks of constants: run by `make slow` and by .ci/run.
_ODD = [pytest.param(file, marks=pytest.mark.slow) for file in STRUCTURE]


@pytest.fixture(scope="module", params=_ODD, ids=[file.stem for file in STRUCTURE])
def odd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CorpusCase:
    """No head stays float: these graphs are small, and often the head is all there is."""
    return case_of(request.param, tmp_path_factory.mktemp(request.param.stem), PlanOptions(float_heads="none"))


@pytest.fixture(scope="module", params=QDQ, ids=lambda file: file.stem)
def paired(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CorpusCase:
    return case_of(request.param, tmp_path_factory.mktemp(request.param.stem))


def test_the_corpus_is_there(shared: Path) -> None:
    assert (len(TRAINED), len(QDQ), len(STRUCTURE)) == (29, 27, 40)


# ---------------------------------------------------------------------- trained models


def test_trained_models_get_pairs_and_stay_as_they_are(trained: CorpusCase) -> None:
    assert trained.done.plan.activations and trained.done.plan.weights
    assert len(trained.done.inserted.added) == len(trained.done.plan.points)
    assert sha256_of(trained.file) == trained.sha256


def test_l1_peel_undoes_insert(trained: CorpusCase) -> None:
    laws.check_peel_undoes_insert(trained.file, trained.done, trained.folder)


def test_l2_insert_twice_is_insert_once(trained: CorpusCase) -> None:
    laws.check_insert_is_idempotent(trained.done, trained.table, trained.folder)


def test_l7_the_order_of_the_nodes_is_nothing(trained: CorpusCase) -> None:
    laws.check_order_of_nodes_is_nothing(laws.lifted(trained.file), trained.file.parent)


def test_l9_nobody_complains_of_the_output(trained: CorpusCase) -> None:
    pytest.importorskip("onnxruntime")
    laws.check_no_new_complaint(trained.file, trained.done.model)
    assert laws.runtime_complaint(trained.done.model) == ""


@pytest.mark.slow
def test_l10_without_rounding_nothing_changes(trained: CorpusCase) -> None:
    pytest.importorskip("onnxruntime")
    looked = laws.check_nothing_but_rounding(laws.lifted(trained.file), trained.model)
    assert looked == len(trained.done.plan.activations)


def test_pairs_are_symmetric_and_outside_of_groups(trained: CorpusCase) -> None:
    assert laws.wrong_pairs(trained.model) == [] and laws.pairs_inside_groups(trained.model) == []


def test_box_regressions_stay_float(trained: CorpusCase) -> None:
    heads = [head for head in trained.done.plan.heads if head.label in ("regression", "mixed")]
    assert len(heads) >= BOX_HEADS.get(trained.file.stem, 0)
    made = {name: node for node in trained.model.graph.node for name in node.output}
    for head in heads:
        readers = [made[name] for name in made[head.key].input[1:] if name in made]
        assert all(node.op_type != "DequantizeLinear" for node in readers), head


# ---------------------------------------------------------------------- odd structures


def test_odd_structures_stay_as_they_are(odd: CorpusCase) -> None:
    assert sha256_of(odd.file) == odd.sha256


def test_l1_on_odd_structures(odd: CorpusCase) -> None:
    if GraphView(laws.lifted(odd.file).graph, odd.file.parent).pairs:
        pytest.skip("has Q/DQ of its own")
    laws.check_peel_undoes_insert(odd.file, odd.done, odd.folder)


def test_l2_on_odd_structures(odd: CorpusCase) -> None:
    options = verbs.InsertOptions(plan=PlanOptions(float_heads="none"), allow_empty=True)
    again = verbs.insert(odd.done.model, scales=odd.table, options=options, output=odd.folder / "again.onnx")
    assert laws.same(again.model, odd.done.model)


def test_l7_on_odd_structures(odd: CorpusCase) -> None:
    laws.check_order_of_nodes_is_nothing(laws.lifted(odd.file), odd.file.parent)


def test_l9_on_odd_structures(odd: CorpusCase) -> None:
    pytest.importorskip("onnxruntime")
    laws.check_no_new_complaint(odd.file, odd.done.model)


def test_l10_on_odd_structures(odd: CorpusCase) -> None:
    pytest.importorskip("onnxruntime")
    if not odd.done.inserted.added or laws.runtime_complaint(odd.file):
        pytest.skip("no pair was added, or onnxruntime cannot run the file")
    laws.check_nothing_but_rounding(laws.lifted(odd.file), odd.model, odd.data_folder)


# ---------------------------------------------------------------------- models with Q/DQ of other tools


def test_pairs_of_others_stay_and_insert_twice_is_insert_once(paired: CorpusCase) -> None:
    before = [node for node in laws.lifted(paired.file).graph.node if node.op_type in laws.PAIR]
    after = {node.SerializeToString() for node in paired.model.graph.node if node.op_type in laws.PAIR}
    assert all(node.SerializeToString() in after for node in before)
    again = verbs.insert(paired.done.model, scales=paired.table, options=laws.ANY, output=paired.folder / "again.onnx")
    assert laws.same(again.model, paired.done.model)
    assert sha256_of(paired.file) == paired.sha256


def test_l7_and_l9_with_pairs_of_others(paired: CorpusCase) -> None:
    pytest.importorskip("onnxruntime")
    laws.check_order_of_nodes_is_nothing(laws.lifted(paired.file), paired.file.parent)
    laws.check_no_new_complaint(paired.file, paired.done.model)


def test_peel_takes_pairs_of_others_out_or_says_why_not(paired: CorpusCase) -> None:
    options = verbs.PeelOptions(laws.V8_6, on_conflict="max")
    outputs = [paired.folder / "p.onnx", paired.folder / "p.cache"]
    try:
        peeled = verbs.peel(paired.done.model, options, output=outputs[0], cache=outputs[1])
    except QdqError as error:
        assert "\n" not in error.line() and error.todo
        assert not any(path.exists() for path in outputs)
        return
    plain = onnx.load(peeled.model)
    assert not any(node.op_type in laws.PAIR for node in plain.graph.node)
    assert laws.checker_complaint(peeled.model) == "" or laws.checker_complaint(paired.file) != ""
    known = {node.op_type for node in paired.model.graph.node} | {"Identity"}  # which carries the name of an output
    assert {node.op_type for node in plain.graph.node} <= known


def test_a_conflicting_table_is_refused_and_requantize_replaces(shared: Path, tmp_path: Path) -> None:
    file = shared / "corpus" / "qdq" / "gen_resnet20_modelopt_torch.onnx"
    table = ScaleTable({p.tensor: Scale.of(0.5) for p in verbs.plan(file).activations})
    with pytest.raises(QdqError, match="--requantize"):
        verbs.insert(file, scales=table, output=tmp_path / "q.onnx")
    assert not any(tmp_path.iterdir())
    options = verbs.InsertOptions(requantize=True)
    done = verbs.insert(file, scales=table, options=options, output=tmp_path / "q.onnx")
    assert {scale.bits.item() for scale in done.inserted.scales.values()} == {0.5}
