# SPDX-License-Identifier: Apache-2.0
"""The verbs `plan_recipe` and `run_recipe`: a recipe to its commands, and to what they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtool import __version__
from qdqtool.recipe.command_line import CommandLine
from qdqtool.recipe.model_facts import NO_DEVICE, forecast_device
from qdqtool.recipe.plan_steps import PlannedStep, plan_steps
from qdqtool.recipe.read_recipe import read_recipe
from qdqtool.recipe.run_steps import RunRequest, run_steps
from qdqtool.recipe.values import Recipe, builds_by_file_types
from qdqtool.workflows.recipe_checks import opset_notes
from qdqtool.workflows.recipe_result import RecipePlan, RecipeResult


def _tell_nobody(text: str) -> None:
    """What is shown of steps where nobody asked."""


@dataclass(frozen=True)
class RecipeOptions:
    """How a recipe is run.

    Attributes:
        output: the run's folder; None for the recipe's `out`, else `<recipe>.run` beside it.
        again: run every step, whatever is there.
        tell: is given a line for each step before it runs, or where it is up to date.
    """

    output: str | Path | None = None
    again: bool = False
    tell: Callable[[str], None] = _tell_nobody


def plan_recipe(recipe: str | Path | Recipe, commands: CommandLine, options: RecipeOptions | None = None) -> RecipePlan:
    """Check a recipe and give its commands; nothing is run or written.

    Args:
        recipe: a TOML file, or the values of one.
        commands: the command line, `qdqtool.cli.commands.Commands()`.
        options: the run's folder.

    Raises:
        QdqError: the recipe is none, or a step of it cannot run: an unknown verb, option or step, a missing file.
    """
    return _planned(recipe, commands, options)[1]


def run_recipe(
    recipe: str | Path | Recipe, commands: CommandLine, options: RecipeOptions | None = None
) -> RecipeResult:
    """Run the steps of a recipe that are not done yet.

    A step is done when its record says that it was made from what it would be made from now (the content of the files
    and folders that it names, its options, the version of qdqtool) and its files hold what it wrote. Everything is
    checked before the first step. A run that was killed is taken up at the step that it was in.

    Args:
        recipe: a TOML file, or the values of one.
        commands: runs a command, `qdqtool.cli.commands.Commands()`.
        options: the run's folder; whether all steps run again.

    Raises:
        QdqError: as `plan_recipe`; another run is at work in the folder; a step failed, which is named, and
            `exit_code` is that of the step.
    """
    options = options or RecipeOptions()
    read, plan = _planned(recipe, commands, options)
    for note in plan.notes:
        options.tell(f"warning: {note}")
    model = None if read.model is None else read.base / read.model
    if any(step.options.get("target") == "dla" for step in read.steps):
        read = replace(read, device=NO_DEVICE)  # the cost model is of GPUs
    device, typed = forecast_device(read.device), builds_by_file_types(read.steps)
    request = RunRequest(plan.steps, plan.folder, __version__, model, options.again, device, typed)
    done, facts = run_steps(request, commands.call, options.tell)
    return RecipeResult(plan.folder, model, facts, tuple(done), read.device)


def _planned(
    recipe: str | Path | Recipe, commands: CommandLine, options: RecipeOptions | None
) -> tuple[Recipe, RecipePlan]:
    read = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    output = (options or RecipeOptions()).output
    folder = read.folder if output is None else Path(output)
    steps: tuple[PlannedStep, ...] = plan_steps(read, commands, folder)
    return read, RecipePlan(folder, steps, opset_notes(steps, folder))
