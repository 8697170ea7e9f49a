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
