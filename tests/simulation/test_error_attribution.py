# SPDX-License-Identifier: Apache-2.0
"""Sites between known tensors, fused groups as one, and the ranking: error counts where it is born."""

from __future__ import annotations

import math

from qdqtool.graph.view import GraphView
from qdqtool.match.groups import find_groups
from qdqtool.measures import Measure, decibel
from qdqtool.rulebook import load_rules
from qdqtool.simulation.error_attribution import ErrorSite, find_sites, rank
from tests.graphs import view_of

NET = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] w, float[4,4,3,3] v> {
    [one] c = Conv<pads=[1,1,1,1]>(x, w)
    s = Sigmoid(c)
    m = Mul(c, s)
    [two] d = Conv<pads=[1,1,1,1]>(m, v)
    r = Relu(d)
    y = Add(r, m)
}"""


def sites_of(view: GraphView, known: set[str]) -> list[ErrorSite]:
    return find_sites(view, find_groups(view, load_rules("gpu")), known)


def noisy(tensor: str, noise: float) -> Measure:
    return Measure(tensor, decibel(noise), noise, 0.0, 0.0, 1, 0)


def test_groups_are_one_site() -> None:
    sites = sites_of(view_of(NET), {"c", "s", "m", "d", "r", "y"})
    assert sites == [
        ErrorSite("one", "Conv Sigmoid Mul", ("x",), "m"),
        ErrorSite("two", "Conv Relu Add", ("m",), "y"),  # the residual Add belongs to the group
    ]


def test_unknown_tensors_are_passed_over() -> None:
    sites = sites_of(view_of(NET), {"m", "y"})
    assert [(site.output, set(site.inputs)) for site in sites] == [("m", {"x"}), ("y", {"m"})]
    assert sites[1].kind == "Conv Relu Add"
    assert sites_of(view_of(NET), {"d"})[0].inputs == ("x",)
    assert sites_of(view_of(NET), set()) == []


def test_pairs_and_bodies_are_seen_through() -> None:
    view = view_of("""g (float[4] x, bool b) => (float[4] y) <float k = {0.1}, int8 z = {0}> {
        n = Neg(x)
        q = QuantizeLinear(n, k, z)
        d = DequantizeLinear(q, k, z)
        r = Relu(d)
        y = If (b) < then_branch = t () => (float[4] u) { u = Abs(r) },
        else_branch = e () => (float[4] v) { v = Neg(n) }
        >
    }""")
    sites = sites_of(view, {"n", "r", "y"})
    assert [(site.inputs, site.output) for site in sites] == [(("x",), "n"), (("n",), "r"), (("b", "n", "r"), "y")]


def test_where_it_is_born_comes_before_where_it_arrives() -> None:
    sites = [
        ErrorSite("a", "Conv", ("x",), "t"),
        ErrorSite("b", "Conv", ("t",), "u"),
        ErrorSite("c", "Conv", ("u",), "y"),
    ]
    measures = {name: noisy(name, noise) for name, noise in {"t": 0.001, "u": 0.1, "y": 0.11}.items()}
    got = rank(sites, measures, {"t": noisy("t", 0.05)})
    assert [culprit.site.operator for culprit in got] == ["b", "a", "c"]
    first = got[0]
    assert (first.sqnr_in, first.sqnr_out) == (30.0, 10.0)
    assert first.sqnr_read == decibel(0.05), "behind its Q/DQ"
    assert first.drop == 10 * math.log10((0.1 + 1e-4) / (0.001 + 1e-4))
    assert got[1].sqnr_in == math.inf and got[1].sqnr_read == math.inf and math.isfinite(got[1].drop)


def test_the_worst_input_counts_and_falling_noise_is_no_culprit() -> None:
    measures = {name: noisy(name, noise) for name, noise in {"p": 0.01, "q": 0.2, "y": 0.1}.items()}
    assert rank([ErrorSite("add", "Add", ("p", "q"), "y")], measures, {}) == []
    assert rank([ErrorSite("add", "Add", ("p",), "y")], measures, {})[0].drop > 9


def test_noise_without_end_before_a_site_is_not_its_own() -> None:
    site = ErrorSite("a", "Conv", ("p",), "y")
    assert rank([site], {"p": noisy("p", math.inf), "y": noisy("y", 1.0)}, {}) == []


def test_drops_that_hurt_nobody_rank_low() -> None:
    sites = [ErrorSite("calm", "Slice", ("x",), "t"), ErrorSite("real", "Conv", ("t",), "y")]
    measures = {"t": noisy("t", 1e-7), "y": noisy("y", 1e-3)}
    assert [culprit.site.operator for culprit in rank(sites, measures, {})] == ["real", "calm"]


def test_a_reference_of_zeros_is_a_culprit_without_a_number() -> None:
    got = rank([ErrorSite("a", "Conv", ("x",), "y")], {"y": noisy("y", math.inf)}, {})
    assert got[0].drop == math.inf
    assert got[0].to_json()["drop_db"] is None
    assert got[0].to_json()["sqnr_in_db"] is None
