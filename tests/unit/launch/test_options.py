"""Values of options that no launch can be made of are refused in one line, before anything starts."""

from __future__ import annotations

import json

import pytest

from hvdtrain.cli.main import main


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No site file, no scheduler around, a folder of its own, and no GPU."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--timeout", "nan", "--", "true"], "nan is no number of seconds"),
        (["run", "--timeout", "inf", "--", "true"], "inf is not in the range"),
        (["run", "--output", "", "--", "true"], "the path is empty"),
        (["run", "--hostfile", "", "--", "true"], "the path is empty"),
        (
            ["run", "--ssh-identity", "none", "-H", "a:1", "--", "true"],
            "--ssh-identity: there is no file none",
        ),
        (["run", "--bind", "gpu", "--", "true"], "--bind gpu: no rank uses a GPU"),
        (["run", "--", ""], "the program's name is empty"),
        (["run", "--output", "/dev/null/logs", "--", "true"], "rank-0.log cannot be written"),
        (["run", "--launcher", "srun", "--", "true"], "1 rank cannot be started"),
        (["submit", "--", ""], "nothing to submit"),
        (["submit", "--log", "no/such/folder/log", "--", "true"], "--log: there is no folder no/such/folder"),
    ],
)
def test_refusals(capsys, words, message):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_ranks_get_what_setup_lines_export(capsys):
    words = ["submit", "--dry-run", "--json", "--log", "logs-%j/x", "--setup", "export DATA=/scratch"]
    assert main([*words, "--", "prog"]) == 0
    assert " --env=DATA " in json.loads(capsys.readouterr().out)["script"]
