# SPDX-License-Identifier: Apache-2.0
"""Options that mean nothing are refused before anything is read, each with its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qdqtool.errors import QdqError
from qdqtool.training.optimizers import AdamW, Sgd, make_optimizer
from qdqtool.training.options import MAX_MINUTES, RELATIVE_LR, RunOptions, UpdateOptions, optimizer_of


def test_the_defaults_mean_something() -> None:
    UpdateOptions().check()
    RunOptions().check()
    assert isinstance(make_optimizer(UpdateOptions(), 3), AdamW)
    assert isinstance(make_optimizer(UpdateOptions("sgd", lr=0.1), 3), Sgd)


def test_an_optimizer_and_its_settings() -> None:
    assert optimizer_of("adamw") == ("adamw", {"betas": (0.9, 0.999), "epsilon": 1e-8})
    assert optimizer_of("adamw,epsilon=1e-6,betas=.8:.99") == ("adamw", {"betas": (0.8, 0.99), "epsilon": 1e-6})
    assert optimizer_of("sgd,nesterov") == ("sgd", {"momentum": 0.9, "nesterov": True})
    assert optimizer_of("sgd,momentum=.5") == ("sgd", {"momentum": 0.5, "nesterov": False})


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"optimizer": "adam"}, "--optimizer: 'adam' is not one"),
        ({"lr": 0.1, "relative_lr": 0.1}, "--lr: cannot be combined with --relative-lr"),
        ({"optimizer": "sgd"}, "--optimizer sgd: has no default learning rate; give --lr"),
        ({"lr": 0.0}, "--lr: 0 is not more than 0"),
        ({"lr": float("nan")}, "--lr: nan is not more than 0"),
        ({"optimizer": "adamw,epsilon=-1"}, "--optimizer adamw,epsilon: -1 is not more than 0"),
        ({"weight_decay": -1.0}, "--weight-decay: -1 is not 0 or more"),
        ({"l1": float("inf")}, "--l1: inf is not"),
        ({"optimizer": "adamw,betas=0.9:1"}, "--optimizer adamw,betas: 1 is not from 0 to below 1"),
        ({"optimizer": "adamw,betas=0.9"}, "--optimizer adamw,betas: '0.9' is not two numbers such as 0.9:0.999"),
        ({"optimizer": "sgd,momentum=1.5", "lr": 1.0}, "--optimizer sgd,momentum: 1.5 is not from 0 to below 1"),
        ({"optimizer": "sgd,momentum", "lr": 1.0}, "--optimizer sgd,momentum: lacks its value"),
        ({"optimizer": "sgd,momentum=a", "lr": 1.0}, "--optimizer sgd,momentum: 'a' is not a number"),
        ({"optimizer": "sgd,nesterov=1", "lr": 1.0}, "--optimizer sgd,nesterov: takes no value"),
        ({"optimizer": "adamw,momentum=0.9"}, "--optimizer: 'momentum' is no setting of adamw; adamw has betas"),
        ({"ema_decay": 1.0}, "--ema-decay: 1"),
    ],
)
def test_updates_that_mean_nothing(given: dict[str, Any], reported: str) -> None:
    with pytest.raises(QdqError) as caught:
        UpdateOptions(**given).check()
    assert caught.value.line().startswith(reported)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"steps": 0}, "--steps: 0 is not a valid number"),
        ({"grad_accum": 0}, "--grad-accum: 0"),
        ({"evaluate_every": 0}, "--evaluate-every: 0"),
        ({"checkpoint_every": 0}, "--checkpoint-every: 0"),
        ({"threads": 0}, "--threads: 0"),
        ({"threads": 2**63}, "--threads: 9223372036854775808 is not a number of threads"),
        ({"steps": 10**30}, "--steps: 1000000000000000000000000000000 is not a valid number"),
        ({"grad_accum": 2**31}, "--grad-accum: 2147483648"),
        ({"patience": -1}, "--patience: -1 is below 0"),
        ({"seed": -1}, "--seed: -1 is below 0"),
        ({"max_minutes": 0.0}, "--max-minutes: 0 is not more than 0"),
        ({"resume": True}, "--resume: continues from a checkpoint, and none is named"),
    ],
)
def test_runs_that_mean_nothing(given: dict[str, Any], reported: str) -> None:
    with pytest.raises(QdqError) as caught:
        RunOptions(**given).check()
    assert caught.value.line().startswith(reported)


def test_the_rate_and_the_time_that_hold() -> None:
    assert UpdateOptions().rate == RELATIVE_LR
    assert UpdateOptions().relative
    assert not UpdateOptions(lr=1e-4).relative
    assert UpdateOptions(lr=1e-4).rate == 1e-4
    assert RunOptions().seconds == MAX_MINUTES * 60
    assert RunOptions(steps=3).seconds is None
    assert RunOptions(steps=3, max_minutes=2.0, checkpoint=Path("c")).seconds == 120
