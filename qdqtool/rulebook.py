# SPDX-License-Identifier: Apache-2.0
"""rules/*.toml as frozen values, filtered by TensorRT version. Reading and checking the files is `rule_files.py`."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.rtxversion import RTX_TARGET, refuse_trt_version, rtx_in_range
from qdqtool.rule_files import choice, common_words, documents_of, read_rules, rules_folder, spell_out
from qdqtool.rule_kinds import (
    AttentionForm,
    Bound,
    CommonScale,
    Commute,
    Composite,
    Fusion,
    HeadRules,
    Int8Consumer,
    LateBiasReader,
    Rule,
    SharedScale,
    StackedOperand,
    TargetPolicy,
    UnfoldedOperator,
    WeightAxis,
)
from qdqtool.rule_steps import chain_of, steps_of
from qdqtool.trtversion import NEWEST, TrtVersion, in_range

_SHIPPED_ONLY = frozenset({"layer", "limit"})


@dataclass(frozen=True, eq=False)
class RuleBook:
    """Everything a target can do at one TensorRT version. Equal to itself alone: what is compiled from it is kept."""

    target: str
    sets: Mapping[str, tuple[str, ...]]
    fusions: tuple[Fusion, ...]
    consumers: tuple[Int8Consumer, ...]
    commutes: tuple[Commute, ...]
    weights: tuple[WeightAxis, ...]
    bounds: tuple[Bound, ...]
    shared_scales: tuple[SharedScale, ...]
    composites: tuple[Composite, ...]
    heads: HeadRules
    policy: TargetPolicy
    floats: tuple[Fusion, ...] = ()
    attentions: tuple[AttentionForm, ...] = ()
    late_biases: tuple[LateBiasReader, ...] = ()
    common_scales: tuple[CommonScale, ...] = ()
    stacked_concats: tuple[StackedOperand, ...] = ()
    unfolded: tuple[UnfoldedOperator, ...] = ()
    named: Mapping[str, Rule] = field(default_factory=dict)
    format: str = "int8"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all rules."""
        return tuple(self.named)

    def rule(self, name: str) -> Rule:
        """The rule of that name; QdqError with the nearest one where there is none."""
        if name in self.named:
            return self.named[name]
        near = difflib.get_close_matches(name, self.names, 1)
        raise QdqError(name, "no such rule" + (f", did you mean {near[0]}" if near else ""), "see rules/")


def load_rules(
    target: str = "gpu", version: TrtVersion | None = None, extra: Path | None = None, number_format: str = "int8"
) -> RuleBook:
    """The rules of a target, those only that hold for a TensorRT version and a number format.

    Raises:
        QdqError: a file that is missing, not TOML, or not of the schema (rule and key named).
    """
    if target == RTX_TARGET:
        refuse_trt_version(version)
    version = version or NEWEST
    if extra is None:
        return _shipped(rules_folder(), target, version, number_format)
    own = read_rules(extra)
    base = own.get("extends", target)
    if base not in ("common", target):
        raise QdqError(extra, f"extends {base!r}, but the target is {target!r}", f'write extends = "{target}"')
    if "policy" in own:
        raise QdqError(extra, "'policy' is allowed only in the rules of a target", "leave it out")
    for kind in sorted(_SHIPPED_ONLY & own.keys()):
        raise QdqError(extra, f"{kind!r} is allowed only in rules/dla.toml", "leave it out: lint takes no rules file")
    documents = [(extra, own), *documents_of(rules_folder() / f"{target}.toml")]
    return _assemble(target, documents, version, number_format)


@functools.cache
def _shipped(folder: Path, target: str, version: TrtVersion, number_format: str) -> RuleBook:
    """Read once in a process: the files of an installation stay as they are."""
    return _assemble(target, documents_of(folder / f"{target}.toml"), version, number_format)


def _assemble(
    target: str, documents: list[tuple[Path, dict[str, Any]]], version: TrtVersion, number_format: str
) -> RuleBook:
    heads = _heads(rules_folder() / "heads.toml", [d["heads"] for _, d in documents if "heads" in d])
    sets: dict[str, tuple[str, ...]] = {}
    policy: dict[str, Any] = {}
    for _, document in reversed(documents):
        policy.update(document.get("policy", {}))
        sets.update({str(name): tuple(ops) for name, ops in document.get("sets", {}).items()})

    sets = spell_out(documents[0][0], sets)

    def gather(kind: str, make: Any) -> tuple[Any, ...]:
        rules: dict[str, Rule] = {}
        for path, document in documents:
            for entry in document.get(kind, []):
                rule = make(path, entry)
                if rule.name not in rules and holds(path, rule, version, target, number_format):
                    rules[rule.name] = rule
        return tuple(rules.values())

    composites = gather("composite", _composite)
    fusions, consumers = gather("fusion", _fusion), gather("consumer", _consumer)
    commutes, weights = gather("commute", _commute), gather("weight", _weight)
    bounds, shared_scales = gather("bound", _bound), gather("shared_scale", _shared_scale)
    floats, attentions = gather("float", _fusion), gather("attention", _attention)
    late_biases = gather("late_bias", _naming_operators(LateBiasReader))
    common_scales = gather("common_scale", _naming_operators(CommonScale))
    stacked_concats = gather("stacked_concat", _naming_operators(StackedOperand))
    unfolded = gather("unfolded", _naming_operators(UnfoldedOperator))
    every = (*fusions, *consumers, *commutes, *weights, *bounds, *shared_scales, *composites, *floats, *attentions)
    named = {rule.name: rule for rule in (*every, *late_biases, *common_scales, *stacked_concats, *unfolded)}
    target_policy = TargetPolicy(**{**policy, "no_int8": frozenset(policy["no_int8"])})
    return RuleBook(
        target,
        sets,
        fusions,
        consumers,
        commutes,
        weights,
        bounds,
        shared_scales,
        composites,
        heads,
        target_policy,
        floats,
        attentions,
        late_biases,
        common_scales,
        stacked_concats,
        unfolded,
        named,
        number_format,
    )


def holds(path: Path, rule: Rule, version: TrtVersion, target: str = "gpu", number_format: str | None = None) -> bool:
    """Whether a rule is for a version, target and number format; QdqError where a range cannot be read."""
    if rule.formats and number_format not in (None, *rule.formats):
        return False
    try:
        if rule.rtx and not (rtx_in_range(rule.rtx) and target == RTX_TARGET):
            return False
        return not rule.trt or in_range(version, rule.trt)
    except QdqError as error:
        todo = 'write trt like ">=8.0,<11" and rtx like ">=1.7"'
        raise QdqError(path, f"rule {rule.name!r}: {error.reason}", todo) from None


def _fusion(path: Path, entry: Mapping[str, Any]) -> Fusion:
    return Fusion(**common_words(path, entry, frozenset({"match"})), steps=chain_of(path, entry))


def _attention(path: Path, entry: Mapping[str, Any]) -> AttentionForm:
    needed, more = frozenset({"head_sizes", "least", "most"}), frozenset({"least_queries", "most_queries"})
    common = common_words(path, entry, frozenset({"match", "int8"}), needed | more | {"half", "output"})
    output = choice(path, {"output": "pair", **entry}, "output", ("pair", "none")) != "none"
    int8 = choice(path, entry, "int8", ("one-kernel", "no")) != "no"
    half = choice(path, {"half": "one-kernel", **entry}, "half", ("one-kernel", "no")) != "no"
    given = (needed | more) & entry.keys()
    if not needed <= given if int8 else given:
        todo = 'write head_sizes, least and most with int8 = "one-kernel", and none of them with "no"'
        raise QdqError(path, f"rule {common['name']!r}: has {', '.join(sorted(given)) or 'no sizes'}", todo)
    sizes = entry.get("head_sizes", [])
    default = {"least": 0, "most": 0}
    default |= {f"{end}_queries": entry.get(end, 0) for end in ("least", "most")}
    numbers = {key: entry.get(key, value) for key, value in default.items()}
    every = [*numbers.values(), *(sizes if isinstance(sizes, list) else [sizes])]
    if any(type(number) is not int or number < 0 for number in every):
        todo = "write head_sizes = [16, 32], least = 2, most = 512"
        raise QdqError(path, f"rule {common['name']!r}: its sizes are not whole numbers", todo)
    words: dict[str, Any] = {**common, **numbers, "head_sizes": tuple(sizes)}
    return AttentionForm(**words, steps=chain_of(path, entry), int8=int8, half=half, output=output)


def _consumer(path: Path, entry: Mapping[str, Any]) -> Int8Consumer:
    common = common_words(path, entry, frozenset({"ops", "inputs", "when"}))
    inputs = choice(path, entry, "inputs", ("activation", "all"))
    when = choice(path, entry, "when", ("always", "quantized-output", "never"))
    return Int8Consumer(**common, steps=steps_of(path, entry), inputs=inputs, when=when)


def _commute(path: Path, entry: Mapping[str, Any]) -> Commute:
    common = common_words(path, entry, frozenset({"ops", "side"}), frozenset({"second"}))
    side = choice(path, entry, "side", ("before", "after", "both"))
    second = choice(path, {"second": "same", **entry}, "second", ("same", "next", "float"))
    if {"next": "both", "float": "before"}.get(second, side) != side:
        todo = 'write second = "next" with side = "both", "float" with "before", or leave it out'
        raise QdqError(path, f'rule {common["name"]!r}: second = "{second}" does not go with side = "{side}"', todo)
    return Commute(**common, steps=steps_of(path, entry), side=side, second=second)


def _weight(path: Path, entry: Mapping[str, Any]) -> WeightAxis:
    common = common_words(path, entry, frozenset({"ops", "axis"}))
    axis = entry["axis"]
    if axis != "tensor" and (isinstance(axis, bool) or not isinstance(axis, int)):
        raise QdqError(path, f"rule {common['name']!r}: axis is {axis!r}", 'write a number or "tensor"')
    return WeightAxis(**common, steps=steps_of(path, entry), axis=None if axis == "tensor" else axis)


def _bound(path: Path, entry: Mapping[str, Any]) -> Bound:
    common = common_words(path, entry, frozenset({"ops", "amax"}))
    amax = entry["amax"]
    if isinstance(amax, bool) or not isinstance(amax, (int, float)) or not 0 < amax < float("inf"):
        raise QdqError(path, f"rule {common['name']!r}: amax is {amax!r}", "write a positive number")
    return Bound(**common, steps=steps_of(path, entry), amax=float(amax))


def _shared_scale(path: Path, entry: Mapping[str, Any]) -> SharedScale:
    common = common_words(path, entry, frozenset({"ops", "members"}))
    members = choice(path, entry, "members", ("all", "inputs", "none"))
    return SharedScale(**common, steps=steps_of(path, entry), members=members)


def _naming_operators(kind: Callable[..., Rule]) -> Callable[[Path, Mapping[str, Any]], Rule]:
    """The reader of a kind of rule that says nothing but which operators it is about."""
    return lambda path, entry: kind(**common_words(path, entry, frozenset({"ops"})), steps=steps_of(path, entry))


def _composite(path: Path, entry: Mapping[str, Any]) -> Composite:
    return Composite(**common_words(path, entry, frozenset({"text"})), text=tuple(entry["text"]))


def _heads(path: Path, own: list[dict[str, Any]]) -> HeadRules:
    words: dict[str, Any] = dict(read_rules(path)["heads"])
    for extra in reversed(own):
        words.update(extra)
    lists = ("markers", "bounded", "arithmetic", "pools", "moves", "maps", "normalizations")
    for key in sorted(words.keys() - {*lists, "features", "scores"}):
        raise QdqError(path, f"unknown key {key!r} in [heads]", f"known: {', '.join(lists)}, features, scores")
    return HeadRules(
        features=dict(words["features"]),
        scores=dict(words["scores"]),
        **{key: frozenset(words[key]) for key in lists},
    )
