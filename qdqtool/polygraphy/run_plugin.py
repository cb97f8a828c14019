# SPDX-License-Identifier: Apache-2.0
"""The plug-in of `polygraphy run`: options `--qdq-*` and the runner `--int8-sim`. It writes calls of loaders, no logic.

Polygraphy finds `argument_groups` through the entry point `polygraphy.run.plugins`. Options have a prefix because
Polygraphy takes abbreviations, with which others would clash.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import argparse
from typing import Any

from polygraphy.logger import G_LOGGER
from polygraphy.tools.args import ModelArgs, OnnxLoadArgs
from polygraphy.tools.args import util as args_util
from polygraphy.tools.args.base import BaseArgs, BaseRunnerArgs
from polygraphy.tools.script import Script, make_invocable, make_invocable_if_nondefault_kwargs

_SOURCES = ("data", "scales", "cache")
_OF_DATA = ("preprocess", "limit", "method", "keep_float")


def argument_groups() -> list[BaseArgs]:
    """What Polygraphy asks for: the groups of options, in the order of its help."""
    return [QdqLoadArgs(), Int8SimRunnerArgs()]


class QdqLoadArgs(BaseArgs):
    """INT8 by qdqtool: what `--int8-sim` simulates of a plain model; a Q/DQ model needs none of these.

    Depends on:

        - ModelArgs
        - OnnxLoadArgs
    """

    def add_parser_args_impl(self) -> None:
        """Declare the options."""
        add = self.group.add_argument
        add("--qdq-data", metavar="D", help="insert Q/DQ calibrated on D: a folder, .npz, .npy, loader.py or .json")
        add("--qdq-scales", metavar="S", help="insert Q/DQ with a scale table that qdqtool calibrate wrote")
        add("--qdq-cache", metavar="C", help="no Q/DQ: round as TensorRT does with this calibration cache")
        add("--qdq-preprocess", metavar="P", help="of images in --qdq-data: imagenet, yolov8, ... or key=value,...")
        add("--qdq-limit", metavar="N", type=int, help="calibrate on the first N samples of --qdq-data")
        add("--qdq-method", metavar="M", help="how --qdq-data becomes scales: auto (default), mse, entropy, max, ...")
        add("--qdq-keep-float", metavar="N", help="operators that --qdq-data may keep in float: a number or auto")
        add(
            "--qdq-target",
            choices=["gpu", "dla"],
            help="target whose rounding and placement are used: gpu (default) or dla",
        )
        add("--qdq-trt-version", metavar="V", help="TensorRT version whose rules are used: 8502, 8.5.2, jp5.1, ...")

    def parse_impl(self, args: argparse.Namespace) -> None:
        """Keep what was given, and refuse what does not go together."""
        names = (*_SOURCES, *_OF_DATA, "target", "trt_version")
        self.given = {name: args_util.get(args, f"qdq_{name}") for name in names}
        sources = [f"--qdq-{name}" for name in _SOURCES if self.given[name] is not None]
        if len(sources) > 1:
            G_LOGGER.critical(f"{' and '.join(sources)}: give one of them")
        idle = [name for name in _OF_DATA if self.given[name] is not None and self.given["data"] is None]
        if idle:
            G_LOGGER.critical(f"--qdq-{idle[0].replace('_', '-')} says how data is used: give --qdq-data")
        kept = self.given["keep_float"]
        if kept is not None and kept != "auto":
            if not kept.isdecimal():
                G_LOGGER.critical(f"--qdq-keep-float {kept}: is neither a number nor auto")
            self.given["keep_float"] = int(kept)

    def add_to_script_impl(self, script: Script) -> Any:
        """The name of the loader of the model to simulate, as an inline string."""
        if self.arg_groups[ModelArgs].path is None:
            G_LOGGER.critical("--int8-sim needs a model file")
        loader = self.arg_groups[OnnxLoadArgs].add_to_script(script)
        if self.given["data"] is None and self.given["scales"] is None:
            return loader
        script.add_import(imports=["InsertQdq"], frm="qdqtool.polygraphy")
        words = {"data": self.given["data"], "scales": self.given["scales"], "options": self._insert_options(script)}
        return script.add_loader(make_invocable("InsertQdq", loader, **words), "insert_qdq")

    def simulate_options(self, script: Script) -> Any:
        """The call that makes `SimulateOptions`; None for the defaults."""
        words = {name: self.given[name] for name in ("target", "trt_version", "cache")}
        return self._call(script, "SimulateOptions", words)

    def _insert_options(self, script: Script) -> Any:
        plan = self._call(script, "PlanOptions", {name: self.given[name] for name in ("target", "trt_version")})
        read = self._call(script, "DataOptions", {name: self.given[name] for name in ("preprocess", "limit")})
        words = {
            "plan": plan,
            "data_options": read,
            "calibration": self.given["method"],
            "keep_float": self.given["keep_float"],
        }
        return self._call(script, "InsertOptions", words)

    @staticmethod
    def _call(script: Script, name: str, words: dict[str, Any]) -> Any:
        made = make_invocable_if_nondefault_kwargs(name, **words)
        if made is not None:
            script.add_import(imports=[name], frm="qdqtool")
        return made


class Int8SimRunnerArgs(BaseRunnerArgs):
    """INT8 Simulation: running an INT8 model on a CPU with the rounding of TensorRT.

    Depends on:

        - QdqLoadArgs
    """

    def get_name_opt_impl(self) -> tuple[str, str]:
        """The runner's name, and its option."""
        return "INT8 simulation by qdqtool", "int8-sim"

    def get_extra_help_text_impl(self) -> str:
        """What the help adds."""
        return "For a Q/DQ model, or a plain one with --qdq-data, --qdq-scales or --qdq-cache."

    def add_to_script_impl(self, script: Script) -> None:
        """Add the runner."""
        of_model = self.arg_groups[QdqLoadArgs]
        script.add_import(imports=["Int8SimRunner"], frm="qdqtool.polygraphy")
        loader = of_model.add_to_script(script)
        script.add_runner(make_invocable("Int8SimRunner", loader, options=of_model.simulate_options(script)))
