# SPDX-License-Identifier: Apache-2.0
"""What a model derives from its graph is made once, and again after an edit."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from tests.graphs import model_of

RELUS = "g (float[1, 4] x) => (float[1, 4] y) { h = Relu (x) y = Relu (h) }"


def test_the_index_is_kept_until_an_edit_is_committed() -> None:
    model = Model(model_of(RELUS))
    view = model.view
    assert model.view is view
    editor = Editor(view)
    editor.add_node("Identity", ["x"], "z", beside=None, after=False)
    editor.commit()
    assert [node.op for node in model.view.nodes] == ["Identity", "Relu", "Relu"]


def test_a_value_is_derived_once() -> None:
    model, calls = Model(model_of(RELUS)), list[Model]()

    def count(seen: Model) -> int:
        calls.append(seen)
        return len(seen.graph.node)

    assert (model.derived(count), model.derived(count)) == (2, 2)
    assert calls == [model]
    model.changed()
    assert model.derived(count) == 2
    assert len(calls) == 2


def test_another_proto_or_a_copy_begins_anew() -> None:
    model = Model(model_of(RELUS))
    view = model.view
    other = replace(model, proto=model_of(RELUS))
    assert other.view is not view
    copy = model.copy()
    Editor(copy.view).commit()
    assert model.view is view
    assert copy.view.graph is copy.proto.graph
    assert copy.proto == model.proto


def test_a_model_is_freed_with_its_index_without_the_garbage_collector() -> None:
    model = Model(model_of(RELUS))
    held = weakref.ref(model), weakref.ref(model.view)
    gc.disable()
    try:
        del model
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()
