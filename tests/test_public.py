# SPDX-License-Identifier: Apache-2.0
"""`import qdqtool`: what is public, and that it costs nothing until it is used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import qdqtool


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_costs_nothing() -> None:
    loaded = python("import sys, qdqtool; print(*sorted(m for m in sys.modules if 'onnx' in m or 'numpy' in m))")
    assert loaded == ""


def test_a_name_brings_only_its_room() -> None:
    loaded = python("import sys, qdqtool; qdqtool.QdqError, qdqtool.TrtVersion; print('onnx' in sys.modules)")
    assert loaded == "False"


@pytest.mark.slow
def test_no_verb_brings_what_only_extras_have() -> None:
    heavy = "onnxruntime", "PIL", "polygraphy", "onnx_graphsurgeon", "torch", "tensorrt"
    code = (
        f"import sys, qdqtool; [getattr(qdqtool, n) for n in qdqtool.__all__]; print(*({heavy!r} & sys.modules.keys()))"
    )
    assert python(code.replace(repr(heavy), repr(set(heavy)))) == ""


@pytest.mark.parametrize("name", qdqtool.__all__)
def test_every_public_name_is_there_with_a_docstring(name: str) -> None:
    value = getattr(qdqtool, name)
    assert value is not None and inspect.getdoc(value)
    assert name in dir(qdqtool)


@pytest.mark.slow
def test_a_room_does_not_hide_the_function_of_its_name() -> None:
    """A package of the same name would become the attribute when it is first imported."""
    code = "import qdqtool, qdqtool.calibration.engine; print(callable(qdqtool.calibrate), callable(qdqtool.insert))"
    assert python(code) == "True True"


def test_type_checkers_see_the_names_that_are_there_in_the_modules_where_they_are() -> None:
    tree = ast.parse(Path(qdqtool.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    lines = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {one.asname: str(line.module).removeprefix("qdqtool.") for line in lines for one in line.names}
    assert typed == qdqtool._HOMES and sorted(typed) == qdqtool.__all__  # type: ignore[type-var]
    assert all(one.name == one.asname for line in lines for one in line.names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'inser'"):
        _ = qdqtool.inser


def test_the_functions_are_those_of_their_rooms() -> None:
    from qdqtool.verbs.insert import insert, plan
    from qdqtool.verbs.peel import peel

    assert (qdqtool.insert, qdqtool.peel, qdqtool.plan) == (insert, peel, plan)


@pytest.mark.slow
def test_a_verb_does_not_bring_the_others() -> None:
    code = "import sys, qdqtool.verbs.insert; print(*(m for m in sys.modules if m.startswith('qdqtool.verbs.')))"
    others = {name.removeprefix("qdqtool.verbs.").partition("_")[0] for name in python(code).split()}
    assert others == {"insert", "typed"}


@pytest.mark.parametrize("name", [n for n in qdqtool.__all__ if inspect.isfunction(getattr(qdqtool, n))])
def test_public_functions_have_fewer_than_six_parameters_and_no_mutable_default(name: str) -> None:
    parameters = inspect.signature(getattr(qdqtool, name)).parameters.values()
    assert len(parameters) < 6
    assert not any(isinstance(p.default, (list, dict, set)) for p in parameters)
    assert all(p.kind != p.VAR_KEYWORD and p.annotation is not p.empty for p in parameters)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads is new in Python 3.11")
@pytest.mark.parametrize("name", ["condition", "finetune", "graft", "insert", "lint", "peel"])
def test_what_gives_a_model_tells_its_kind_by_what_went_in(name: str) -> None:
    from typing import get_overloads

    reported = [inspect.signature(one) for one in get_overloads(getattr(qdqtool, name))]
    kinds = [(str(one.parameters["model"].annotation), str(one.return_annotation).split("[", 1)[1]) for one in reported]
    assert kinds == [
        ("onnx.ModelProto", "onnx.ModelProto]"),
        ("str | os.PathLike[str]", "Path]"),
        ("ModelSource", "Any]"),
    ]
    parameters = [[*one.parameters] for one in reported]
    assert parameters == [[*inspect.signature(getattr(qdqtool, name)).parameters]] * 3
