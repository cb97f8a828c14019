# SPDX-License-Identifier: Apache-2.0
"""Which targets each verb's options take, that versions may be text, and whose rules come of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.rulebook import load_rules
from qdqtool.runtime.execution import ExecutionOptions
from qdqtool.target_options import CACHE_TARGETS, CacheTargetOptions, TargetOptions, require_target
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.compare import CompareOptions
from qdqtool.verbs.evaluate_options import EvaluateOptions
from qdqtool.verbs.infer_options import InferOptions
from qdqtool.verbs.lint_options import LintOptions
from qdqtool.verbs.peel_options import PeelOptions
from qdqtool.verbs.ptq_options import PtqOptions
from qdqtool.verbs.simulate_options import SimulateOptions

V8_5 = TrtVersion(8, 5, 2)
OPTIONAL = [TargetOptions, PlanOptions, LintOptions, SimulateOptions]
REQUIRED = [CacheTargetOptions, PeelOptions, PtqOptions]


@pytest.mark.parametrize("kind", OPTIONAL)
def test_a_version_is_text_or_a_value_or_the_newest(kind: type[TargetOptions]) -> None:
    assert kind().trt_version is None
    assert kind(trt_version="8502").trt_version == kind(trt_version=V8_5).trt_version == V8_5
    assert kind("dla", "jp5.1") == kind(target="dla", trt_version="jp5.1")


@pytest.mark.parametrize("kind", REQUIRED)
def test_a_cache_wants_its_version_first(kind: type[CacheTargetOptions]) -> None:
    assert kind("8502") == kind(V8_5, "gpu")
    assert kind("8502", "dla").target == "dla"
    with pytest.raises(TypeError, match="trt_version"):
        kind()  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", OPTIONAL + REQUIRED)
@pytest.mark.parametrize("target", ["", "GPU", "common", "gpu_layers", "tpu"])
def test_another_target_is_refused_when_the_options_are_made(kind: Any, target: str) -> None:
    with pytest.raises(QdqError, match=rf"--target: '{target}' .*gpu or (rtx or )?dla"):
        kind(target=target, trt_version=V8_5)
    with pytest.raises(QdqError):
        dataclasses.replace(kind(trt_version=V8_5), target=target)


def test_options_of_one_verb_may_know_fewer() -> None:
    require_target("rtx")
    require_target("dla", CACHE_TARGETS)
    with pytest.raises(QdqError, match=r"--target rtx: .*calibration cache"):
        require_target("rtx", CACHE_TARGETS)


@pytest.mark.parametrize("kind", [SimulateOptions, *REQUIRED])
def test_what_works_with_caches_refuses_rtx_with_the_reason(kind: Any) -> None:
    with pytest.raises(QdqError, match=r"--target rtx: .*calibration cache"):
        kind(target="rtx", trt_version=V8_5)


@pytest.mark.parametrize("target", CACHE_TARGETS)
@pytest.mark.parametrize("kind", [*OPTIONAL, *REQUIRED])
def test_the_rules_are_those_of_target_and_version(kind: Any, target: str) -> None:
    assert kind(target=target, trt_version=V8_5).rule_book() is load_rules(target, V8_5)


def test_rules_of_ones_own_come_first(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('schema = 1\nextends = "gpu"\n')
    assert PlanOptions(rules=own).rule_book().names == load_rules("gpu", None, own).names
    with pytest.raises(QdqError, match=r"'gpu', .*'dla'"):
        PlanOptions("dla", rules=own).rule_book()


@pytest.mark.parametrize("kind", [SimulateOptions, CompareOptions, EvaluateOptions, InferOptions])
def test_provider_and_bar_are_given_by_name(kind: type[ExecutionOptions]) -> None:
    given = kind(provider="cuda", progress=False)
    assert (given.provider, given.progress) == ("cuda", False)
    assert (kind().provider, kind().progress) == ("cpu", None)
    names = [field.name for field in dataclasses.fields(kind) if field.kw_only]
    assert names == ["provider", "progress"]
