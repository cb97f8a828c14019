# SPDX-License-Identifier: Apache-2.0
"""`qdqtool run`: the steps of a recipe, each done once. Words to calls and back, no more."""

from __future__ import annotations

import argparse

from qdqtool.cli.output import print_json, print_lines, warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("recipe", metavar="RECIPE", help="the steps, in TOML; paths in it are relative to it")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="default: the recipe's out, else RECIPE.run beside it")
    parser.add_argument("--again", action="store_true", help="run every step again, also those that are up to date")
    parser.add_argument("--dry-run", action="store_true", help="check the recipe and print its commands, run nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run and print the table; the fault of a step is raised as QdqError, with the exit code of the step."""
    from qdqtool.cli.commands import Commands
    from qdqtool.workflows.run_recipe import RecipeOptions, plan_recipe, run_recipe

    options = RecipeOptions(args.output, again=args.again, tell=lambda text: warn(text, args, kind="run"))
    if args.dry_run:
        plan = plan_recipe(args.recipe, Commands(), options)
        for note in plan.notes:
            warn(note, args)
        if args.json:
            print_json(plan.to_json())
        else:
            print_lines(plan.summary(), args, asked=True)
        return 0
    result = run_recipe(args.recipe, Commands(), options)
    if args.json:
        print_json(result.to_json())
    else:
        print_lines([*result.summary(), *result.next_lines()], args, asked=True)
    return 0
