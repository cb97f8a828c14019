# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Rules from files: the schema, versions, extension, and that what ships is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.rule_kinds import Fusion
from qdqtool.rule_steps import Step
from qdqtool.rulebook import load_rules
from qdqtool.trtversion import TrtVersion
from tests.graphs import V8_6, V10

RULE = 'why = "w"\nsee = "s"\nstatus = "guess"\n'
FUSION = f'[[fusion]]\nname = "mine"\nmatch = "Conv:weight > Erf? > act|Exp"\n{RULE}'


def own(tmp_path: Path, text: str, head: str = 'schema = 1\nextends = "gpu"\n') -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(head + text, encoding="utf-8")
    return path


def test_what_ships_loads_and_every_rule_says_why_and_where_from() -> None:
    rules = load_rules("gpu")
    assert rules.target == "gpu" and len(rules.names) == len(set(rules.names))
    for name in rules.names:
        rule = rules.rule(name)
        assert rule.why and rule.see and rule.status in ("documented", "measured", "guess")
        assert rule.why.endswith("."), "a sentence"


def test_sets_of_the_parent_are_there_and_name_what_exists() -> None:
    import onnx.defs

    rules = load_rules("gpu")
    composites = {rule.name for rule in rules.composites}
    for members in rules.sets.values():
        for member in members:
            assert member in composites or onnx.defs.has(member), member


def test_the_scale_of_a_transposed_convolution_is_a_guess() -> None:
    rule = load_rules("gpu").rule("conv-transpose-weight")
    assert rule.status == "guess" and getattr(rule, "axis", 0) is None


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("version", "there"),
    [
        (TrtVersion(7, 1, 3), False),
        (TrtVersion(8, 5, 0), False),
        (TrtVersion(8, 5, 1), True),
        (V10, True),
        (None, True),
    ],
)
def test_a_rule_holds_for_its_versions(version: TrtVersion | None, there: bool) -> None:
    assert ("conv-act-add" in load_rules("gpu", version).names) is there


def test_both_ends_of_a_range(tmp_path: Path) -> None:
    path = own(tmp_path, f'[[fusion]]\nname = "mine"\nmatch = "Conv"\ntrt = ">=8.5,<10"\n{RULE}')
    there = [version for version in ("8.4.3", "8.5.0", "8.6.1", "9.3.0", "10.0.0")
             if "mine" in load_rules("gpu", TrtVersion(*map(int, version.split("."))), path).names]  # fmt: skip
    assert there == ["8.5.0", "8.6.1", "9.3.0"]


# ---------------------------------------------------------------- one's own


def test_a_file_of_ones_own_comes_first_and_replaces_by_name(tmp_path: Path) -> None:
    path = own(
        tmp_path, FUSION + FUSION.replace('"mine"', '"conv"') + '[sets]\nact = ["Relu"]\n[heads]\nmarkers = ["MyNMS"]\n'
    )
    rules, before = load_rules("gpu", extra=path), load_rules("gpu")
    assert [rule.name for rule in rules.fusions][:2] == ["mine", "conv"]
    assert len(rules.fusions) == len(before.fusions) + 1
    assert rules.sets["act"] == ("Relu",) and rules.sets["conv"] == before.sets["conv"]
    assert rules.heads.markers == {"MyNMS"} and rules.heads.bounded == before.heads.bounded
    assert isinstance(rules.fusions[0], Fusion)
    assert rules.fusions[0].steps == (
        Step(("Conv",), "weight", False),
        Step(("Erf",), "", True),
        Step(("act", "Exp"), "", False),
    )


def test_a_file_without_extends_extends_the_target(tmp_path: Path) -> None:
    assert "mine" in load_rules("gpu", extra=own(tmp_path, FUSION, "schema = 1\n")).names


def test_every_kind_of_rule_is_read(tmp_path: Path) -> None:
    text = (
        f'[[consumer]]\nname = "r"\nops = ["Foo:weight|Bar"]\ninputs = "all"\nwhen = "always"\n{RULE}'
        f'[[commute]]\nname = "c"\nops = ["Foo"]\nside = "after"\n{RULE}[[weight]]\nname = "w"\nops = ["Foo"]\naxis = 1\n{RULE}'
        f'[[bound]]\nname = "b"\nops = ["Foo"]\namax = 1.5\n{RULE}[[shared_scale]]\nname = "t"\nops = ["Foo"]\nmembers = "inputs"\n{RULE}'
    ).replace("Foo:weight|Bar", "Foo|Bar:weight")
    rules = load_rules("gpu", extra=own(tmp_path, text))
    assert (rules.consumers[0].steps, rules.consumers[0].inputs, rules.consumers[0].when) == (
        (Step(("Foo", "Bar"), "weight", False),),
        "all",
        "always",
    )
    assert rules.commutes[0].side == "after" and rules.weights[0].axis == 1
    form = '[[attention]]\nname = "a"\nmatch = "MatMul > Softmax?"\nint8 = "one-kernel"\nhead_sizes = [8]\nleast = 1\nmost = 9\n'
    (first, *_) = load_rules("gpu", extra=own(tmp_path, form + RULE)).attentions
    assert (first.int8, first.head_sizes, first.least, first.most, len(first.steps)) == (True, (8,), 1, 9, 2)
    assert first.most_queries == 9
    (first, *_) = load_rules("gpu", extra=own(tmp_path, f"{form}most_queries = 99\n{RULE}")).attentions
    assert first.most_queries == 99
    assert rules.bounds[0].amax == 1.5 and rules.shared_scales[0].members == "inputs"


BROKEN = {
    "not TOML": ("[[fusion", "mine.toml: is not a rules file \\(not TOML"),
    "another schema": ("", "schema is 2, not 1"),
    "no schema": ("", "schema is None, not 1"),
    "another target": ("", "extends 'dla', but the target is 'gpu'; write extends"),
    "unknown table": ("[[fusions]]\n", "unknown table 'fusions', did you mean 'fusion'"),
    "no name": (f'[[fusion]]\nmatch = "Conv"\n{RULE}', "a rule without a name"),
    "unknown key": (FUSION + 'sea = "s"\n', "rule 'mine': unknown key 'sea', did you mean 'see'"),
    "no reason": (FUSION.replace('why = "w"\n', ""), "rule 'mine': no 'why'"),
    "no match": (f'[[fusion]]\nname = "mine"\n{RULE}', "rule 'mine': no 'match'"),
    "status": (FUSION.replace("guess", "rumor"), "rule 'mine': status 'rumor'; write documented, measured or guess"),
    "step": (FUSION.replace("Erf?", "Erf??"), r"rule 'mine': cannot read ' Erf\?\? '"),
    "empty step": (FUSION.replace("Erf?", ""), "rule 'mine': cannot read"),
    "version": (FUSION + 'trt = "8"\n', "rule 'mine': "),
    "second": (
        f'[[commute]]\nname = "c"\nops = ["Foo"]\nside = "both"\nsecond = "larger"\n{RULE}',
        "rule 'c': second is 'larger'; write one of same, next, float",
    ),
    "second without both": (
        f'[[commute]]\nname = "c"\nops = ["Foo"]\nside = "after"\nsecond = "next"\n{RULE}',
        'rule \'c\': second = "next" does not go with side = "after"',
    ),
    "second for floats on both sides": (
        f'[[commute]]\nname = "c"\nops = ["Foo"]\nside = "both"\nsecond = "float"\n{RULE}',
        'rule \'c\': second = "float" does not go with side = "both"',
    ),
    "side": (
        f'[[commute]]\nname = "c"\nops = ["Foo"]\nside = "left"\n{RULE}',
        "rule 'c': side is 'left'; write one of before, after",
    ),
    "inputs": (
        f'[[consumer]]\nname = "r"\nops = ["Foo"]\ninputs = "some"\nwhen = "always"\n{RULE}',
        "rule 'r': inputs is 'some'",
    ),
    "when": (
        f'[[consumer]]\nname = "r"\nops = ["Foo"]\ninputs = "all"\nwhen = "seldom"\n{RULE}',
        "rule 'r': when is 'seldom'",
    ),
    "axis": (f'[[weight]]\nname = "w"\nops = ["Foo"]\naxis = "first"\n{RULE}', "rule 'w': axis is 'first'"),
    "axis that is a truth": (f'[[weight]]\nname = "w"\nops = ["Foo"]\naxis = true\n{RULE}', "rule 'w': axis is True"),
    "bound": (
        f'[[bound]]\nname = "b"\nops = ["Foo"]\namax = -1\n{RULE}',
        "rule 'b': amax is -1; write a positive number",
    ),
    "bound of text": (f'[[bound]]\nname = "b"\nops = ["Foo"]\namax = "1"\n{RULE}', "rule 'b': amax is '1'"),
    "members": (
        f'[[shared_scale]]\nname = "t"\nops = ["Foo"]\nmembers = "some"\n{RULE}',
        "rule 't': members is 'some'",
    ),
    "attention without sizes": (
        f'[[attention]]\nname = "a"\nmatch = "MatMul"\nint8 = "one-kernel"\n{RULE}',
        "rule 'a': has no sizes; write head_sizes, least and most",
    ),
    "attention with sizes for nothing": (
        f'[[attention]]\nname = "a"\nmatch = "MatMul"\nint8 = "no"\nmost = 3\n{RULE}',
        "rule 'a': has most; write head_sizes",
    ),
    "attention with queries for nothing": (
        f'[[attention]]\nname = "a"\nmatch = "MatMul"\nint8 = "no"\nmost_queries = 3\n{RULE}',
        "rule 'a': has most_queries; write head_sizes",
    ),
    "attention of words": (
        f'[[attention]]\nname = "a"\nmatch = "MatMul"\nint8 = "one-kernel"\nhead_sizes = ["x"]\nleast = 1\nmost = 3\n{RULE}',
        "rule 'a': its sizes are not whole numbers",
    ),
    "attention that is neither": (
        f'[[attention]]\nname = "a"\nmatch = "MatMul"\nint8 = "yes"\n{RULE}',
        "rule 'a': int8 is 'yes'; write one of one-kernel, no",
    ),
    "heads": ("[heads]\nmarker = []\n", r"unknown key 'marker' in \[heads\]"),
    "a name that is no text": (
        f'[[fusion]]\nname = ["a"]\nmatch = "Conv"\n{RULE}',
        "'fusion' holds a value of the wrong kind",
    ),
    "not a list of rules": ('fusion = "Conv"\n', "'fusion' holds a value of the wrong kind"),
    "not a rule": ("fusion = [3]\n", "'fusion' holds a value of the wrong kind"),
    "why is no text": (FUSION.replace('"w"', "3"), "'fusion' holds a value of the wrong kind"),
    "ops are no list": (f'[[commute]]\nname = "c"\nops = 3\nside = "before"\n{RULE}', "'commute' holds a value"),
    "ops are one word": (f'[[commute]]\nname = "c"\nops = "Foo"\nside = "before"\n{RULE}', "'commute' holds a value"),
    "a set that is not a list": ("[sets]\nact = 3\n", "'sets' holds a value of the wrong kind"),
    "sets that are none": ("", "'sets' holds a value of the wrong kind"),
    "a head that is not a list": ("[heads]\nmarkers = 3\n", "'heads' holds a value of the wrong kind"),
    "a place that is not a number": ('[heads]\nscores = {TopK = "first"}\n', "'heads' holds a value of the wrong kind"),
}
HEADS = {
    "sets that are none": "schema = 1\nsets = 3\n",
    "another schema": "schema = 2\n",
    "no schema": "",
    "another target": 'schema = 1\nextends = "dla"\n',
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_refused_with_the_rule_and_key(kind: str, tmp_path: Path) -> None:
    text, message = BROKEN[kind]
    path = own(tmp_path, text, HEADS.get(kind, 'schema = 1\nextends = "gpu"\n'))
    with pytest.raises(QdqError, match=message) as error:
        load_rules("gpu", extra=path)
    assert error.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="cannot be read"):
        load_rules("gpu", extra=tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"schema = 1 # \xe4\n")
    with pytest.raises(QdqError, match="line 1 is not UTF-8"):
        load_rules("gpu", extra=tmp_path / "latin.toml")
    with pytest.raises(QdqError, match="cannot be read"):
        load_rules("gqu")


def test_a_rule_that_does_not_exist_has_a_near_one() -> None:
    with pytest.raises(QdqError, match=r"max-pol: .*max-pool"):
        load_rules("gpu").rule("max-pol")


# ---------------------------------------------------------------- errors.py: the form of every message here


def test_an_error_is_one_line_with_place_reason_and_what_to_do() -> None:
    error = QdqError("a.onnx", "is broken", "export it again")
    assert str(error) == error.line() == "a.onnx: is broken; export it again"
    assert (error.where, error.reason, error.todo, error.exit_code) == ("a.onnx", "is broken", "export it again", 2)
    assert str(QdqError(Path("m"), "bad")) == "m: bad"
    assert MissingPackageError("x", "y").exit_code == 3 and isinstance(MissingPackageError("x", "y"), QdqError)


@pytest.mark.parametrize("sign", ["\n", "\r\n", "\x1b", "\x00", "\u2028", "\u2029", "\x85", "\x9b"])
def test_control_characters_cannot_break_the_line(sign: str) -> None:
    line = str(QdqError(f"a{sign}b", f"c{sign}d", f"e{sign}f"))
    reported = "".join(f"\\x{ord(one):02x}" if ord(one) < 256 else f"\\u{ord(one):04x}" for one in sign)
    reported = reported.replace("\\x0a", "\\n").replace("\\x0d", "\\r")
    assert line == f"a{reported}b: c{reported}d; e{reported}f"
    assert line.splitlines() == [line]


def test_letters_of_other_languages_stay() -> None:
    assert str(QdqError("层/ü", "é")) == "层/ü: é"


@pytest.mark.parametrize("kind", ["layer", "limit"])
def test_rules_of_the_dla_s_layers_are_not_taken_from_other_files(tmp_path: Path, kind: str) -> None:
    path = own(tmp_path, f'[[{kind}]]\nname = "mine"\n{RULE}')
    with pytest.raises(QdqError, match=rf"'{kind}' .*rules/dla.toml"):
        load_rules("gpu", V8_6, path)


def test_the_policy_of_a_target_is_read_from_its_rules() -> None:
    gpu, dla = load_rules("gpu").policy, load_rules("dla").policy
    assert (gpu.points, gpu.float_heads, gpu.weight_rounding, gpu.rounds_everything) == (
        "groups",
        "fp32",
        "half_up",
        False,
    )
    assert (dla.points, dla.float_heads, dla.weight_rounding) == ("every-tensor", "fp16", "half_away")
    assert dla.rounds_everything
    assert not gpu.no_int8
    assert "Softmax" in dla.no_int8


def test_a_file_of_ones_own_has_no_policy(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match=r"'policy' .*a target"):
        load_rules("gpu", V8_6, own(tmp_path, '[policy]\npoints = "every-tensor"\n'))


@pytest.mark.parametrize(
    "line", ['points = "some"', "points = []", 'no_int8 = "Softmax"', "no_int8 = [1]", "other = []"]
)
def test_a_policy_of_another_kind_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(QdqError, match=r"'policy' .*wrong kind"):
        load_rules("gpu", V8_6, own(tmp_path, f"[policy]\n{line}\n"))


def test_rtx_extends_the_gpu_and_has_versions_of_its_own() -> None:
    rtx, gpu = load_rules("rtx"), load_rules("gpu")
    assert set(gpu.names) <= set(rtx.names) and rtx.policy == gpu.policy
    own = {name: rtx.rule(name).rtx for name in rtx.names if rtx.rule(name).rtx}
    assert own == dict.fromkeys(own, ">=1.7") and "conv-transpose-float" in own
    assert rtx.floats and not gpu.floats


def test_a_rule_of_rtx_holds_for_that_target_and_its_versions_alone(tmp_path: Path) -> None:
    text = f'[[float]]\nname = "{{}}"\nmatch = "Conv:weight"\nrtx = "{{}}"\n{RULE}'
    both = text.format("now", ">=1.7") + text.format("later", ">=2")
    rtx = load_rules("rtx", None, own(tmp_path, both, 'schema = 1\nextends = "rtx"\n'))
    assert {rule.name for rule in rtx.floats} == {"conv-transpose-float", "now"}
    assert load_rules("gpu", None, own(tmp_path, both)).floats == ()


def test_a_range_of_rtx_that_cannot_be_read_names_its_rule(tmp_path: Path) -> None:
    text = f'[[float]]\nname = "odd"\nmatch = "Conv:weight"\nrtx = "new"\n{RULE}'
    with pytest.raises(QdqError, match="rule 'odd': "):
        load_rules("rtx", None, own(tmp_path, text, 'schema = 1\nextends = "rtx"\n'))


def test_a_tensorrt_version_beside_rtx_is_refused() -> None:
    with pytest.raises(QdqError, match=r"--trt-version: .* RTX "):
        load_rules("rtx", V8_6)


@pytest.mark.parametrize(
    ("target", "version", "side"),
    [("gpu", V10, "before"), ("gpu", None, "both"), ("rtx", None, "both"), ("dla", None, "before")],
)
def test_on_which_side_of_a_nearest_resize_pairs_stand(target: str, version: TrtVersion | None, side: str) -> None:
    assert getattr(load_rules(target, version).rule("resize-nearest"), "side", "") == side
