# SPDX-License-Identifier: Apache-2.0
"""Steps run once: what makes one run again, what a failure leaves, and that nothing is done twice."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from qdqtool.errors import QdqError
from qdqtool.recipe.content_hash import ContentHashes
from qdqtool.recipe.plan_steps import plan_steps
from qdqtool.recipe.read_recipe import read_recipe
from qdqtool.recipe.run_steps import RunRequest, SharedSteps, run_steps
from qdqtool.recipe.step_store import STEPS, held
from qdqtool.workflows.run_recipe import RecipeOptions, run_recipe
from tests.cli.command import contents
from tests.recipe.recipes import CopyingCommands, write_recipe

TWO = """
model = "m.onnx"
[[step]]
name = "a"
verb = "insert"
[step.options]
data = "d.npz"
[[step]]
name = "b"
verb = "amp"
"""


def ran(recipe: Path, commands: CopyingCommands | None = None, **options: object) -> list[str]:
    """The steps that ran."""
    result = run_recipe(recipe, commands or CopyingCommands(), RecipeOptions(**options))  # type: ignore[arg-type]
    return [one.planned.step.name for one in result.steps if one.ran]


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, TWO)
    assert ran(recipe) == ["a", "b"]
    before = contents(tmp_path / "r.run")
    assert ran(recipe) == []
    assert contents(tmp_path / "r.run") == before | {f"{STEPS}/_hashes.json": before[f"{STEPS}/_hashes.json"]}
    assert ran(recipe, again=True) == ["a", "b"]


def _touch(folder: Path) -> None:
    (folder / "d.npz").write_bytes((folder / "d.npz").read_bytes())


def _other_data(folder: Path) -> None:
    (folder / "d.npz").write_bytes(b"other")


def _lost(folder: Path) -> None:
    (folder / "r.run" / "b.onnx").unlink()


def _damaged(folder: Path) -> None:
    (folder / "r.run" / "a.onnx").write_bytes(b"torn")


def _option(folder: Path) -> None:
    (folder / "r.toml").write_text(TWO + '[step.options]\nto = "bf16"\n')


def _no_effect(folder: Path) -> None:
    (folder / "r.toml").write_text(TWO.replace('data = "d.npz"', 'data = "d.npz"\nworkers = "1"'))


def _broken_record(folder: Path) -> None:
    (folder / "r.run" / STEPS / "b.json").write_text("{")


def _broken_memory(folder: Path) -> None:
    (folder / "r.run" / STEPS / "_hashes.json").write_text("[")


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (_touch, []),
        (_other_data, ["a"]),  # its copy of the model is the same, so that b need not run
        (_lost, ["b"]),
        (_damaged, ["a"]),
        (_option, ["b"]),
        (_no_effect, []),
        (_broken_record, ["b"]),
        (_broken_memory, []),
    ],
)
def test_what_makes_a_step_run_again(change: Callable[[Path], None], again: list[str], tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, TWO)
    ran(recipe)
    change(tmp_path)
    assert ran(recipe) == again
    assert ran(recipe) == []


@pytest.mark.parametrize("name", ["hashes", "lock", "model"])
def test_a_step_may_have_the_name_of_a_file_that_a_run_keeps(name: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, TWO.replace('"a"', f'"{name}"'))
    assert ran(recipe) == [name, "b"]
    assert ran(recipe) == []


def test_another_version_runs_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path, TWO)
    ran(recipe)
    monkeypatch.setattr("qdqtool.workflows.run_recipe.__version__", "99")
    assert ran(recipe) == ["a", "b"]


def test_another_device_forecasts_anew_and_runs_nothing(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, TWO)
    assert ran(recipe) == ["a", "b"]
    for device, said in (("rtx4090", "for rtx4090, with"), ("none", "none is forecast"), ("orin-nx", "for orin-nx")):
        recipe.write_text(f'device = "{device}"\n{TWO}')
        result = run_recipe(recipe, CopyingCommands(), RecipeOptions())
        assert not any(one.ran for one in result.steps) and said in result.summary()[-1]
        assert {one.facts["model"]["forecast_for"] for one in result.steps} == {device}
        assert (result.model_facts["model"]["forecast_microseconds"] is None) == (device == "none")


@pytest.mark.parametrize(("version", "typed"), [("8502", False), ("11.1.0", True)])
def test_a_version_that_takes_types_from_the_file_counts_all_rows_so(version: str, typed: bool, tmp_path: Path) -> None:
    text = TWO.replace('verb = "amp"', f'verb = "insert"\n[step.options]\ntrt-version = "{version}"')
    recipe = write_recipe(tmp_path, TWO.replace('verb = "amp"', 'verb = "insert"'))
    ran(recipe)
    recipe.write_text(text)
    result = run_recipe(recipe, CopyingCommands(), RecipeOptions())
    assert [one.planned.step.name for one in result.steps if one.ran] == ["b"]
    facts = [result.model_facts["model"], *(one.facts["model"] for one in result.steps)]
    assert {one["typed"] for one in facts} == {typed} and len({one["bytes_moved"] for one in facts}) == 1
    assert result.summary()[-2].startswith("floats: in the types" if typed else "floats: as FP16")


def test_the_folder_may_move(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    ran(write_recipe(tmp_path / "old", TWO))
    (tmp_path / "old").rename(tmp_path / "new")
    assert ran(tmp_path / "new" / "r.toml") == []


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, TWO)
    with pytest.raises(KeyboardInterrupt):
        ran(recipe, CopyingCommands(fails="amp"))
    assert sorted(path.name for path in (tmp_path / "r.run").glob("*.onnx")) == ["a.onnx"]
    assert ran(recipe) == ["b"]


TUNED = """
model = "m.onnx"
[[step]]
name = "a"
verb = "finetune"
[step.options]
data = "d.npz"
"""


class KilledTraining(CopyingCommands):
    """A training that is interrupted when it has kept something."""

    def call(self, words: Sequence[str]) -> int:
        self.words.append(words)
        checkpoint_in(words).write_bytes(b"work")
        raise KeyboardInterrupt


def checkpoint_in(words: Sequence[str]) -> Path:
    """The file that a command keeps its work in."""
    assert words[-1] == "--resume" and words[-3] == "--checkpoint"
    return Path(words[-2])


def test_a_training_that_is_interrupted_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    recipe, killed, again = write_recipe(tmp_path, TUNED), KilledTraining(), CopyingCommands()
    with pytest.raises(KeyboardInterrupt, match=r"step a \(finetune\) is not done"):
        ran(recipe, killed)
    kept = checkpoint_in(killed.words[0])
    assert kept.parent == tmp_path / "r.run" / STEPS and kept.is_file()
    assert ran(recipe, again) == ["a"]
    assert again.words == killed.words and "--keep-checkpoint" in again.words[0]
    assert not kept.exists(), "the run takes it away when the step is recorded"
    assert ran(recipe) == []


def test_a_training_interrupted_at_its_end_goes_on_from_its_checkpoint_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model is there, its record is not."""

    class Trained(CopyingCommands):
        def call(self, words: Sequence[str]) -> int:
            checkpoint_in(words).write_bytes(b"work")
            return super().call(words)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    recipe, trained, again = write_recipe(tmp_path, TUNED), Trained(), CopyingCommands()
    with (
        monkeypatch.context() as patch,
        pytest.raises(KeyboardInterrupt, match=r"step a \(finetune\) is not done; run"),
    ):
        patch.setattr("qdqtool.recipe.run_steps._facts", interrupt)
        ran(recipe, trained)
    assert (tmp_path / "r.run" / "a.onnx").is_file() and checkpoint_in(trained.words[0]).is_file()
    assert ran(recipe, again) == ["a"] and again.words == trained.words


def test_a_run_interrupted_between_steps_says_how_it_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qdqtool.recipe.run_steps._facts_of_model", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"^run the same command"):
        ran(write_recipe(tmp_path, TWO))


def run_in(folder: Path, recipe: Path, commands: CopyingCommands, shared: SharedSteps) -> None:
    steps = plan_steps(read_recipe(recipe), commands, folder)
    run_steps(RunRequest(steps, folder, "0", shared=shared, described=False), commands.call, lambda text: None)


def test_runs_take_over_the_first_step_of_each_other(tmp_path: Path) -> None:
    """A later step is done again: what it reads may have another name."""
    recipe, commands = write_recipe(tmp_path, TWO), CopyingCommands()
    shared = SharedSteps(ContentHashes(tmp_path / "hashes.json"))
    run_in(tmp_path / "one", recipe, commands, shared)
    recipe.write_text(TWO.replace('name = "a"', 'name = "a"\noutput = "other.onnx"'))
    run_in(tmp_path / "two", recipe, commands, shared)
    assert commands.called == ["insert", "amp", "amp"]
    assert (tmp_path / "two" / "other.onnx").read_bytes() == (tmp_path / "one" / "a.onnx").read_bytes()
    assert (tmp_path / "two" / "a.json").read_bytes() == (tmp_path / "one" / "a.json").read_bytes()
    again = SharedSteps(ContentHashes(tmp_path / "hashes.json"))
    run_in(tmp_path / "two", recipe, commands, again)
    run_in(tmp_path / "three", recipe, commands, again)
    assert commands.called == ["insert", "amp", "amp", "amp"], "a step that was done before is offered, too"
    _other_data(tmp_path)
    run_in(tmp_path / "four", recipe, commands, shared)
    assert commands.called[4:] == ["insert", "amp"]


def test_a_step_of_several_files_is_not_taken_over(tmp_path: Path) -> None:
    """The data file of a model is named in the model."""

    class WithData(CopyingCommands):
        def call(self, words: Sequence[str]) -> int:
            code = super().call(words)
            output = Path(words[list(words).index("--output") + 1])
            output.with_suffix(".data").write_bytes(b"weights")
            return code

    recipe, commands = write_recipe(tmp_path, TWO), WithData()
    shared = SharedSteps(ContentHashes(tmp_path / "hashes.json"))
    for name in ("one", "two"):
        run_in(tmp_path / name, recipe, commands, shared)
    assert commands.called == ["insert", "amp", "insert", "amp"]


LOWERED = """
model = "m.onnx"
[[step]]
name = "q"
verb = "insert"
[step.options]
trt-version = "7.1.3"
[[step]]
name = "p"
verb = "peel"
[step.options]
target = "gpu"
trt-version = "7.1.3"
"""


@pytest.mark.parametrize(("option", "silenced"), [("", False), ("lower-opset = true", True)])
def test_insert_is_told_that_a_later_step_lowers_the_opset(tmp_path: Path, option: str, silenced: bool) -> None:
    commands = CopyingCommands()
    ran(write_recipe(tmp_path, f"{LOWERED}{option}\n"), commands)
    assert ("--opset-lowered-later" in commands.words[0]) == silenced
    assert "--opset-lowered-later" not in commands.words[1]


@pytest.mark.parametrize("change", [_other_data, lambda folder: _tuned_with(folder, "steps = 7")])
def test_unfinished_work_of_another_input_is_not_taken_up(change: Callable[[Path], None], tmp_path: Path) -> None:
    recipe, killed, again = write_recipe(tmp_path, TUNED), KilledTraining(), CopyingCommands()
    with pytest.raises(KeyboardInterrupt):
        ran(recipe, killed)
    change(tmp_path)
    assert ran(recipe, again) == ["a"]
    assert checkpoint_in(again.words[0]) != checkpoint_in(killed.words[0])
    assert not list((tmp_path / "r.run" / STEPS).glob("*.checkpoint"))


def test_again_begins_a_training_anew(tmp_path: Path) -> None:
    recipe, killed = write_recipe(tmp_path, TUNED), KilledTraining()
    with pytest.raises(KeyboardInterrupt):
        ran(recipe, killed)
    assert ran(recipe, again=True) == ["a"]
    assert not checkpoint_in(killed.words[0]).exists()


def _tuned_with(folder: Path, option: str) -> None:
    (folder / "r.toml").write_text(TUNED + option + "\n")


@pytest.mark.parametrize("option", ['checkpoint = "own.npz"', "blocks = true"])
def test_a_training_that_keeps_its_work_elsewhere_or_nowhere(option: str, tmp_path: Path) -> None:
    recipe, commands = write_recipe(tmp_path, TUNED), CopyingCommands()
    _tuned_with(tmp_path, option)
    assert ran(recipe, commands) == ["a"] and "--resume" not in commands.words[0]


def test_a_failed_step_is_named_with_its_exit_code(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, TWO)
    with pytest.raises(QdqError) as caught:
        ran(recipe, CopyingCommands(fails="amp", code=1))
    assert caught.value.exit_code == 1 and re.search(r"step b \(amp\): .* 1\b", caught.value.line())


def test_files_of_a_step_that_it_no_longer_writes_go(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, TWO)
    ran(recipe)
    recipe.write_text(TWO.replace('verb = "amp"', 'verb = "amp"\noutput = "typed.onnx"'))
    assert ran(recipe) == ["b"]
    assert sorted(path.name for path in (tmp_path / "r.run").glob("*.onnx")) == ["a.onnx", "typed.onnx"]


def test_one_run_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    recipe = write_recipe(tmp_path, TWO)
    with held(tmp_path / "r.run"), pytest.raises(QdqError, match="another run"):
        ran(recipe)


def test_a_run_that_fails_at_once_leaves_nothing(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, TWO)
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(QdqError, match=r"m\.onnx"):
        ran(recipe)
    assert not (tmp_path / "r.run").exists()


def test_a_record_says_what_the_step_was_made_from(tmp_path: Path) -> None:
    ran(write_recipe(tmp_path, TWO))
    kept = json.loads((tmp_path / "r.run" / STEPS / "a.json").read_text())
    assert kept["made_from"]["words"][:4] == ["insert", "m.onnx", "--data", "d.npz"]
    assert sorted(kept["files"]) == ["a.json", "a.onnx"]
    assert kept["facts"]["model"]["macs"] > 0


def test_the_run_says_each_step(tmp_path: Path) -> None:
    said: list[str] = []
    recipe = write_recipe(tmp_path, TWO)
    ran(recipe, tell=said.append)
    ran(recipe, tell=said.append)
    assert [line.split(":")[0] for line in said] == ["step 1 of 2, a", "step 2 of 2, b"] * 2
    assert said[0].startswith("step 1 of 2, a: qdqtool insert ") and said[3].endswith("up to date")


def test_a_step_is_named_before_it_runs(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(QdqError):
        ran(write_recipe(tmp_path, TWO), CopyingCommands("amp", code=3), tell=said.append)
    assert [line.split()[:6] for line in said][-1] == ["step", "2", "of", "2,", "b:", "qdqtool"]


def test_the_command_of_a_step_is_told_as_a_shell_reads_it(tmp_path: Path) -> None:
    said: list[str] = []
    recipe = write_recipe(tmp_path, TWO.replace("d.npz", "my d.npz"))
    (tmp_path / "d.npz").rename(tmp_path / "my d.npz")
    ran(recipe, tell=said.append)
    words = shlex.split(said[0])
    assert words[words.index("--data") + 1].endswith("my d.npz")
