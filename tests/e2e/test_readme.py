"""Every command of the README is run, as it stands there.

``make demo`` and ``make test`` are what CI itself calls; ``tests/e2e/test_clone.py`` runs
``make demo`` in a clone of its own.
"""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from PIL import Image

from hvdtrain.train.store import commit

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.strip()]
BY_CI = ["make demo", "make test"]
# Commands in running text, between backquotes.
INLINE = re.findall(r"`((?:hvdtrain|make|mpirun|horovodrun|torchrun|srun) [^`]+)`", README)


@pytest.fixture
def workspace(tmp_path):
    """A folder with what the README's commands name."""
    for name in ("hostfiles", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (example,) = [text for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "photos" in text]
    job = yaml.safe_load(example) | {"epochs": 1}
    (tmp_path / "photos.yaml").write_text(yaml.safe_dump(job))
    for part, count in (("train", 20), ("validation", 4)):
        for number, name in enumerate(("cat", "dog")):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (80, 70), (250 * number, index, 0)).save(folder / f"{index}.jpg")
    return tmp_path


def make_run(folder):
    """A run directory with a checkpoint, as the command before on that page leaves it."""
    beside = folder / "checkpoints" / ".step-1.1"
    beside.mkdir(parents=True)
    (beside / "state.pt").write_bytes(b"state")
    commit(beside, folder / "checkpoints" / "step-1", {"step": 1})


@pytest.mark.parametrize("line", [line for line in COMMANDS if line not in BY_CI])
def test_command(line, workspace, run_program, bin_dir):
    words = shlex.split(line)
    env = {"PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}"}
    if "train" in words and "photos.yaml" not in words:
        words += ["--set", "epochs=1"]
    if "checkpoints" in words:
        make_run(workspace / words[words.index("checkpoints") + 1])
    if "profile.json" in words:
        (before,) = [line for line in COMMANDS if line.startswith("hvdtrain profile ")]
        assert run_program([str(bin_dir / "hvdtrain"), *shlex.split(before)[1:]], env).code == 0
    ended = run_program([str(bin_dir / words[0]), *words[1:]], env)
    assert ended.code == 0, ended.err
    assert ended.out


def test_ci_calls_what_the_tests_cannot():
    script = (ROOT / ".ci" / "run").read_text()
    for line in BY_CI:
        assert line in COMMANDS
        assert line in script


# Each command in running text -> the test that runs it, and what stands there when it does.
INLINE_TESTS = {
    "hvdtrain schema": ("tests/e2e/test_train.py", 'hvdtrain("schema")'),
    "hvdtrain train": ("tests/e2e/test_train.py", 'hvdtrain("train", "--json"'),
    "srun --mpi=pmix hvdtrain train": ("tests/lab/test_training.py", '"--mpi=pmix"'),
    "hvdtrain train -np 2 --dry-run": (
        "tests/e2e/test_train.py",
        'hvdtrain("train", "-np", "2", "--dry-run")',
    ),
    "hvdtrain build-horovod --dry-run": (
        "tests/e2e/test_build_horovod.py",
        'hvdtrain("build-horovod", "--dry-run"',
    ),
    "hvdtrain whoami": ("tests/lab/test_launch.py", "whoami"),
    "hvdtrain logs JOB -f": ("tests/lab/test_submit.py", '"logs"'),
    "hvdtrain cancel JOB": ("tests/lab/test_submit.py", '"cancel"'),
    "hvdtrain verify job.yaml -np 1,2,3": ("tests/mpi/test_verify.py", '"job.yaml", "-np", "1,2,3"'),
    "hvdtrain verify": ("tests/mpi/test_verify.py", '"verify"'),
    "hvdtrain checkpoints --verify": ("tests/e2e/test_resume.py", '"--verify"'),
    "hvdtrain checkpoints RUN --export model.safetensors": ("tests/e2e/test_resume.py", '"--export"'),
    "hvdtrain run": ("tests/unit/cli/test_launch_verbs.py", '"run"'),
    "hvdtrain run -- PROGRAM": ("tests/lab/test_launch.py", '"run"'),
    "hvdtrain submit --requeue": ("tests/lab/test_requeue.py", '"--requeue"'),
    "hvdtrain profile": ("tests/unit/cli/test_profile.py", '"profile"'),
    "hvdtrain advise": ("tests/unit/cli/test_advise.py", '"advise"'),
    "make nccl-build-check": ("tests/build/nccl_build_check.py", '"nccl_built"'),
}


def test_commands_in_running_text_are_the_ones_with_a_test():
    assert sorted(set(INLINE)) == sorted(INLINE_TESTS)


@pytest.mark.parametrize("command", INLINE_TESTS)
def test_the_test_of_a_command_in_running_text_is_there(command):
    path, part = INLINE_TESTS[command]
    assert part in (ROOT / path).read_text()
