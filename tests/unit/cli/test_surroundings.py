"""Callers that leave out a stream or the home, and rights that nobody looked at."""

import os
import subprocess

import pytest

from hvdtrain.cli import main as main_file
from hvdtrain.cli.main import main
from tests.conftest import HVDTRAIN


def shell(redirection, *words):
    """Runs hvdtrain with streams closed by a shell."""
    line = ["sh", "-c", f'exec "$@" {redirection}', "sh", *HVDTRAIN, *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "words", [["run", "-np", "1", "--", "true"], ["advise", "--measured", "1:9,8:70"], ["whoami"]]
)
def test_a_closed_stdout_is_told_before_anything_is_done(words):
    ended = shell(">&-", *words)
    (told,) = ended.stderr.splitlines()
    assert told.startswith("hvdtrain: error: standard output cannot be written: it is closed")
    assert ended.returncode == 1


@pytest.mark.parametrize("redirection", ["2>&-", "<&-", "<&- 2>&-"])
def test_what_is_said_stays_in_its_stream(redirection):
    ended = shell(redirection, "plan", "-np", "0", "--json")
    assert ended.returncode == 2
    assert ended.stdout.count("\n") == 1
    assert ended.stdout.startswith('{"schema": 1, "error": ')


def test_the_home_comes_from_the_password_file(monkeypatch):
    for home in (None, ""):
        if home is None:
            monkeypatch.delenv("HOME", raising=False)
        else:
            monkeypatch.setenv("HOME", home)
        assert main(["whoami"]) == 0
        assert os.path.isdir(os.environ["HOME"])


def test_a_right_that_nobody_looked_at_is_one_line(monkeypatch, capsys):
    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied", "/secret/x")

    monkeypatch.setattr(main_file.group, "main", refuse)
    assert main(["whoami"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("hvdtrain: error: /secret/x: cannot be used: Permission denied; give a path")
