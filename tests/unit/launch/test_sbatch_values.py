"""Values that sbatch takes, and those that are refused before it sees them."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.sbatch_values import check_value

# option: values that sbatch(1) describes, and values that it does not
TABLE = {
    "time": (
        ("90", "90:30", "2:00:00", "1-12", "1-12:30", "1-12:30:15", "0", "1:99", "UNLIMITED", "infinite"),
        ("", "2h", "1:2:3:4", "1-", "-5", "1-2-3", "1.5", "90 ", "1d", ":30", "tomorrow", "٣"),
    ),
    "mem": (
        ("64G", "4096", "0", "2T", "512k", "1024M", "64GB"),
        ("", "64X", "1.5G", "G", "-1", "64 G", "64GiB", "lots", "64G,32G"),
    ),
    "array": (
        ("0", "0-15%4", "1,3,5-7:2", "0-15:4", "3-3", "1,3%1", "[0-7%2]"),
        (
            "",
            "0-",
            "5-1",
            "0-15:0",
            "0-15%",
            "0-15%0",
            "a",
            "1,,2",
            "0..3",
            "1%2,3",
            "0-9-3",
            "-1",
            "[0-7",
            "[0-3]%2",
        ),
    ),
    "signal": (
        ("USR1@120", "SIGTERM@60", "10@60", "USR2", "B:USR1@120", "R:TERM@1", "USR1@65535", "HUP", "XCPU@5"),
        (
            "",
            "USR3@60",
            "USR1@",
            "USR1@1m",
            "@60",
            "USR1@65536",
            "X:USR1@60",
            "0@60",
            "99@60",
            "USR1@-1",
            "SEGV@60",
            "SIG10@5",
        ),
    ),
}


def cases(column):
    return [(option, value) for option, row in TABLE.items() for value in row[column]]


@pytest.mark.parametrize(("option", "value"), cases(0))
def test_forms_of_the_manual(option, value):
    check_value(option, value, f"--{option}")


@pytest.mark.parametrize(("option", "value"), cases(1))
def test_other_forms_are_refused(option, value):
    with pytest.raises(InputError) as refused:
        check_value(option, value, "--asked")
    assert str(refused.value).startswith(f"--asked: {value!r}; legal: ")


def test_options_that_only_slurm_can_judge():
    check_value("partition", "any thing", "--partition")
