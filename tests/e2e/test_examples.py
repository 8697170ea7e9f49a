"""The examples as a user calls them, and that N ranks of them train like one process."""

import difflib
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAM = ROOT / "tests" / "mpi" / "programs" / "script_example.py"
ON_TWO = ["-m", "hvdtrain.cli.main", "run", "-H", "localhost:2", "--"]
PAGE = (EXAMPLES / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def result_of(ended):
    """The one line of JSON; a launcher of ours puts the rank before it."""
    assert ended.code == 0, ended.err
    (line,) = [line for line in ended.out.splitlines() if "{" in line]
    return json.loads(line[line.index("{") :])


def changed_lines():
    """What stands in plain_after.py and not, but for its indentation, in plain_before.py."""
    before, after = (
        [line.strip() for line in (EXAMPLES / name).read_text().splitlines()[1:]]
        for name in ("plain_before.py", "plain_after.py")
    )
    return [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:]]


def test_a_usual_script_changes_by_few_lines():
    assert len(changed_lines()) <= 9


def test_the_page_shows_that_difference():
    text = (ROOT / "docs" / "script.md").read_text()
    (shown,) = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)
    lines = shown.splitlines()
    assert [line[1:].strip() for line in lines if line.startswith("+")] == changed_lines()
    before = [line.strip() for line in (EXAMPLES / "plain_before.py").read_text().splitlines()]
    assert all(line[1:].strip() in before for line in lines if line.startswith("-"))


@pytest.fixture
def folder(tmp_path):
    """The examples in the working folder."""
    for path in EXAMPLES.glob("*.py"):
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_every_example_is_on_the_page():
    assert set(re.findall(r"`(\w+\.py)`", PAGE)) == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page(line, folder, run_program, bin_dir):
    words = shlex.split(line)
    ended = run_program([str(bin_dir / words[0]), *words[1:]], {"PATH": f"{bin_dir}:{os.environ['PATH']}"})
    # Each trains on the same batches: only the last bits of sums differ from machine to machine.
    assert result_of(ended)["accuracy"] == pytest.approx(0.912, abs=0.02)


def test_the_usual_script(folder, run_program):
    assert result_of(run_program([sys.executable, "plain_before.py"]))["accuracy"] > 0.85


# The example, and how far apart summation in another order may bring parameters.
TRAINED = {"plain_after.py": 1e-5, "gan.py": 1e-5, "transformers_tiny.py": 2e-3}


@pytest.mark.parametrize("name", TRAINED)
def test_two_ranks_train_like_one(name, run_program, tmp_path):
    """Adam divides by the size of a gradient, so where that is nearly zero its last bits count."""

    def train(backend, *launch):
        file = tmp_path / f"{backend}.pt"
        words = [sys.executable, *launch, str(PROGRAM), str(EXAMPLES / name), backend, str(file)]
        return result_of(run_program(words)), torch.load(file)

    result, models = train("single")
    assert result.pop("ranks", 1) == 1
    assert models
    for backend in ("horovod", "ddp"):
        found, states = train(backend, *ON_TWO, sys.executable)
        assert found.pop("ranks", 2) == 2
        assert found == pytest.approx(result, rel=5e-3)
        for model, state in models.items():
            for key, value in state.items():
                assert torch.allclose(states[model][key], value, rtol=0, atol=TRAINED[name]), (model, key)
