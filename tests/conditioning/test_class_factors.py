# SPDX-License-Identifier: Apache-2.0
"""The factor of each class: much is won where channels lie apart, nothing where they do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.conditioning.channel_classes import ClassFamily
from qdqtool.conditioning.channel_histograms import ChannelSpectrum, ErrorTable
from qdqtool.conditioning.class_factors import AS_MUCH, choose_class_factors, linked_groups, weaken
from qdqtool.conditioning.class_factors import choose_factors as chosen
from qdqtool.conditioning.equalization_sets import EqualizationSet
from qdqtool.conditioning.predict import Rounding, Weight
from qdqtool.graph.channels.atoms import PINNED
from tests.conditioning.test_predict import dense, depthwise, table_of

ALL = np.ones(8, bool)


@dataclass(frozen=True, eq=False)
class Choice:
    factors: npt.NDArray[np.float64]
    gain: float


def family_of(
    table: ErrorTable, readers: list[Weight], classes: npt.NDArray[np.int64], clip: float | None = None
) -> ClassFamily:
    return ClassFamily(EqualizationSet((), table, tuple(readers), clip), classes)


def choose_factors(
    table: ErrorTable,
    readers: list[Weight],
    free: npt.NDArray[np.bool_],
    rounding: Rounding = "float",
    clip: float | None = None,
) -> Choice:
    """Each channel a class of its own."""
    classes = np.where(free, np.arange(8) + PINNED + 1, PINNED)
    found, gain = chosen(family_of(table, readers, classes, clip), rounding)
    return Choice(found[classes], gain)


def test_channels_apart_are_evened_out_for_a_depthwise_reader() -> None:
    table = table_of(2.0)
    choice = choose_factors(table, [depthwise()], ALL)
    assert choice.gain > 10
    divided = table.amax / choice.factors
    assert divided.max() / divided.min() < 2
    assert table.amax.max() / 2 < divided.max() <= table.amax.max() * (1 + 1e-5)


def test_equal_channels_win_next_to_nothing() -> None:
    assert choose_factors(table_of(1.0), [depthwise(even=1.0)], ALL).gain < 0.5


def test_a_channel_that_may_not_be_divided_keeps_its_size() -> None:
    mask = ALL.copy()
    mask[[1, 5]] = False
    choice = choose_factors(table_of(2.0), [depthwise()], mask)
    assert choice.factors[[1, 5]].tolist() == [1.0, 1.0]
    assert choice.gain > 0


@pytest.mark.parametrize("share", [0.3, 1.0, 4.0])
def test_no_channel_grows_beyond_a_clipping_value_that_stays(share: float) -> None:
    table = table_of(2.0)
    clip = share * float(table.amax.max())
    choice = choose_factors(table, [depthwise()], ALL, clip=clip)
    assert choice.gain > 5
    assert ((table.amax / choice.factors)[table.amax < clip] <= clip * (1 + 1e-6)).all()
    assert (choice.factors[table.amax >= clip] >= 1 - 1e-6).all()


@pytest.mark.parametrize("rounding", ["float", "power-of-two"])
def test_powers_of_two_where_asked_for(rounding: Rounding) -> None:
    factors = choose_factors(table_of(2.3), [dense()], ALL, rounding).factors
    mantissas = np.frexp(factors)[0]
    assert (mantissas == 0.5).all() or rounding == "float"
    assert (factors != 1).any()


def test_a_dead_channel_keeps_one() -> None:
    spectrum = ChannelSpectrum(8, 1)
    values = np.random.default_rng(0).normal(size=(1, 8, 400)) * (2.0 ** -np.arange(8))[None, :, None]
    values[:, 3] = 0
    spectrum.add(values.astype(np.float32))
    assert choose_factors(ErrorTable(spectrum.counts, spectrum.amax), [depthwise()], ALL).factors[3] == 1.0


def test_nothing_alive_nothing_chosen() -> None:
    choice = choose_factors(ErrorTable(np.zeros((8, 384), np.int64), np.zeros(8, np.float32)), [depthwise()], ALL)
    assert choice.gain == 0.0
    assert (choice.factors == 1).all()


def rows(*labels: int) -> npt.NDArray[np.int64]:
    return np.array(labels, np.int64)


EIGHT = rows(*range(2, 10))


def test_families_that_share_a_class_are_decided_together() -> None:
    table = table_of(1.0)
    one, two, three = (family_of(table, [dense()], EIGHT + shift) for shift in (0, 8, 16))
    both = family_of(table, [dense()], np.where(EIGHT < 5, EIGHT, EIGHT + 8))
    still = family_of(table, [dense()], np.full(8, PINNED))
    assert linked_groups([one, two, three, still]) == [[one], [two], [three]]
    assert linked_groups([one, two, both, three]) == [[one, two, both], [three]]


def test_one_factor_serves_all_reads_of_a_class() -> None:
    """One tensor alone would have its channels evened out; the other needs the opposite, and loses more."""
    wide, even = table_of(2.0), table_of(1.0)
    spectrum = ChannelSpectrum(8, 1)
    values = np.random.default_rng(0).normal(size=(1, 8, 4000)) * (2.0 ** np.arange(8))[None, :, None]
    spectrum.add(values.astype(np.float32))
    other = ErrorTable(spectrum.counts, spectrum.amax)
    alone = choose_class_factors([family_of(wide, [depthwise()], EIGHT)], 10, "float")
    assert alone.factors[2] / alone.factors[9] > 16
    opposed = choose_class_factors([family_of(one, [depthwise(even=1.0)], EIGHT) for one in (wide, other)], 10, "float")
    assert 1 / 4 < opposed.factors[2] / opposed.factors[9] < 4
    both = choose_class_factors([family_of(one, [depthwise()], EIGHT) for one in (wide, even)], 10, "float")
    assert 1 < both.factors[2] / both.factors[9] < alone.factors[2] / alone.factors[9]
    assert set(both.gains) <= set(range(2, 10))


def test_powers_of_two_are_taken_where_they_win_as_much() -> None:
    table = table_of(2.0)
    choices = [
        choose_class_factors([family_of(table, [depthwise("no")], EIGHT)], 10, how) for how in ("float", "power-of-two")
    ]
    mantissas = np.frexp(choices[0].factors)[0]
    worse = max(choices[0].gains.values()) - max(choices[1].gains.values())
    assert (worse <= AS_MUCH) == bool((mantissas == 0.5).all())
    assert (np.frexp(choices[1].factors)[0] == 0.5).all()


def test_nothing_is_divided_for_less_than_the_least_gain() -> None:
    choice = choose_class_factors([family_of(table_of(1.0), [depthwise("no")], EIGHT)], 10, "power-of-two")
    assert (choice.factors == 1).all() and choice.gains == {}


@pytest.mark.parametrize("readers", [[], [dense()]])
def test_a_family_that_nobody_reads_in_int8_wins_nothing(readers: list[Weight]) -> None:
    won = choose_class_factors([family_of(table_of(4.0), readers, EIGHT)], 10, "float").gains
    assert bool(won) == bool(readers)


def test_weaker_factors_are_the_root_and_win_less() -> None:
    families = [family_of(table_of(4.0), [depthwise()], EIGHT)]
    choice = choose_class_factors(families, 10, "float")
    half = weaken(families, choice, 0.5)
    powers_of_two = (np.frexp(choice.factors)[0] == 0.5).all()
    wanted = np.log2(choice.factors) / 2
    assert np.allclose(np.log2(half.factors), np.rint(wanted) if powers_of_two else wanted, atol=1e-6)
    assert 0 < max(half.gains.values()) < max(choice.gains.values())
    assert set(half.gains) == set(np.nonzero(half.factors != 1)[0].tolist())


def test_factors_too_weak_to_win_are_none() -> None:
    families = [family_of(table_of(4.0), [depthwise()], EIGHT)]
    none = weaken(families, choose_class_factors(families, 10, "float"), 0.01)
    assert (none.factors == 1).all() and none.gains == {}


def test_weaker_powers_of_two_stay_powers_of_two() -> None:
    families = [family_of(table_of(4.0), [depthwise()], EIGHT)]
    choice = choose_class_factors(families, 10, "power-of-two")
    assert (np.frexp(weaken(families, choice, 0.75).factors)[0] == 0.5).all()
