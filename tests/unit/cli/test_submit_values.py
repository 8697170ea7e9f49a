"""``hvdtrain submit`` refuses values that no sbatch takes, before it makes anything."""

import pytest
from click.testing import CliRunner

from hvdtrain.cli.submit import command
from hvdtrain.errors import InputError


@pytest.mark.parametrize(
    ("option", "value", "legal"),
    [
        ("--time", "2h", "days-hours"),
        ("--memory", "1.5G", "64G"),
        ("--array", "0..3", "0-15%4"),
        ("--signal", "USR1@1m", "USR1@120"),
        ("--signal", f"USR1@{'9' * 5000}", "USR1@120"),
        ("--array", "9" * 5000, "0-15%4"),
    ],
)
def test_value_of_no_form(option, value, legal):
    done = CliRunner().invoke(command, [option, value, "--dry-run", "--", "true"])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(f"{option}: {value!r}; legal: ")
    assert legal in str(done.exception)
    assert done.stdout == ""


def test_values_of_their_forms():
    words = ["--time", "1-12", "--memory", "64GB", "--array", "0-7%2", "--signal", "USR1@120", "--dry-run"]
    done = CliRunner().invoke(command, [*words, "--", "true"])
    assert done.exit_code == 0, done.exception
    for line in ("--time=1-12", "--mem=64GB", "--array=0-7%2", "--signal=B:USR1@120"):
        assert f"#SBATCH {line}\n" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sbatch", "time=rubbish"], "--sbatch time: 'rubbish'; legal: minutes"),
        (["--sbatch", "signal=9000"], "--sbatch signal: '9000'; legal: "),
        (["--sbatch", "array=0..3"], "--sbatch array: '0..3'; legal: "),
        (
            ["--sbatch", "array=0-3", "--array", "0-7"],
            "--sbatch array=0-3: --array 0-7 is given too; omit one",
        ),
    ],
)
def test_other_options_have_the_same_forms(words, told):
    done = CliRunner().invoke(command, [*words, "--dry-run", "--", "true"])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(told)


def test_other_options_that_have_one_here_are_that_one():
    words = ["--sbatch", "array=0-3", "--sbatch", "signal=USR1@60", "--sbatch", "mail-type=END", "--dry-run"]
    done = CliRunner().invoke(command, [*words, "--", "true"])
    assert done.exit_code == 0, done.exception
    for line in ("--array=0-3", "--output=slurm-%A_%a.out", "--signal=B:USR1@60", "--mail-type=END"):
        assert done.stdout.count(f"#SBATCH {line}\n") == 1


def test_numbers_of_gpus_that_nobody_has_are_slurms_to_refuse():
    done = CliRunner().invoke(command, ["--gpus-per-node", "9" * 5000, "--dry-run", "--", "true"])
    assert done.exit_code == 0, done.exception
    assert "#SBATCH --ntasks-per-node=1\n" in done.stdout


@pytest.mark.parametrize(
    "option", ["--partition", "--account", "--constraint", "--name", "--log", "--signal"]
)
def test_an_empty_value_is_no_value(option):
    """As of a variable of a script that is not set."""
    done = CliRunner().invoke(command, [option, "", "--dry-run", "--", "true"])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}': the value is empty" in done.stderr
