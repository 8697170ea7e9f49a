"""Whose the words of a command line are, and what run and submit refuse before anything starts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hvdtrain
from hvdtrain.cli import run as run_verb
from hvdtrain.cli.main import main


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No site file, and no launcher or scheduler around."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_COMM_WORLD", "PMI_", "PMIX_")) or name == "RANK":
            monkeypatch.delenv(name)


def document(capsys, *words):
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_options_after_the_program_are_its_own(capsys, dashes):
    program = ("python", "train.py", "--output", "out", "--timeout", "5", "-np", "9", "--", "x")
    told = document(capsys, "run", "-np", "2", "--dry-run", "--json", *dashes, *program)
    assert told["size"] == 2
    assert tuple(told["command"][-len(program) :]) == program
    assert "--log-dir" not in told["command"]
    script = document(capsys, "submit", "--dry-run", "--json", *dashes, *program)["script"]
    assert script.endswith("  -- python train.py --output out --timeout 5 -np 9 -- x\n")


def test_options_after_a_job_file_are_those_of_submit(capsys, tmp_path):
    shutil.copy(Path(hvdtrain.__file__).parent / "digits.yaml", tmp_path / "a.yaml")
    words = (str(tmp_path / "a.yaml"), "--nodes", "4", "--set", "epochs=2")
    script = document(capsys, "submit", "--dry-run", "--json", *words)["script"]
    assert "#SBATCH --nodes=4" in script
    assert "--set epochs=2" in script


@pytest.mark.parametrize("nic", ["auto", "none"])
def test_one_other_host_is_not_this_machine(capsys, nic):
    words = ["-H", "other.invalid:2", "--ssh-port", "2222", "--env", "FOO=1", "--launcher", "mpirun"]
    told = document(capsys, "run", *words, "--nic", nic, "--dry-run", "--json", "--", "true")
    command = " ".join(told["command"])
    for part in ("-x FOO", "-p 2222", "oob_tcp_keepalive_time 2", "--beat 1"):
        assert part in command
    assert any("could not be asked" in note for note in told["notes"])


def test_secrets_are_not_shown(capsys):
    words = ["--dry-run", "--env", "MY_TOKEN=hunter2", "--env", "DB_PWD=hunter2", "--env", "PLAIN=1"]
    told = document(capsys, "run", *words, "--json", "--", "prog")
    assert {name: told["env"][name] for name in ("MY_TOKEN", "DB_PWD", "PLAIN")} == {
        "MY_TOKEN": "***",
        "DB_PWD": "***",
        "PLAIN": "1",
    }
    assert document(capsys, "submit", *words, "--json", "--", "prog")["env"]["MY_TOKEN"] == "***"
    assert main(["run", *words, "--", "prog"]) == 0
    shown = capsys.readouterr().out
    assert "MY_TOKEN=***" in shown.replace("'", "")
    assert "hunter2" not in shown


def test_a_rank_starts_no_job(capsys, monkeypatch):
    for name, value in {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert main(["run", "-np", "2", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("hvdtrain: error: hvdtrain run inside a launch of 4 ranks by ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--launcher", "mpi"], "no launcher 'mpi'"),
        (["--nodes", "2", "--nic", "lo"], "--nic: lo leads nowhere"),
        (["--nic", "a b"], "--nic: 'a b'"),
        (["--prefix", "'"], "--prefix: "),
        (["--tune", "cycle=1"], "cycle_ms"),
        (["--sbatch", "export=ALL"], "--sbatch: export=ALL; name variables with --env"),
    ],
)
def test_mistakes_are_told_before_the_job_waits(capsys, words, message):
    assert main(["submit", "--dry-run", *words, "--", "true"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "ranks"), [("4", 4), ("a100:4", 4), ("a100:2,v100:2", 4), ("a100", 1), ("a100:2,v100", 1)]
)
def test_ranks_are_the_gpus_of_a_node(capsys, gpus, ranks):
    script = document(capsys, "submit", "--dry-run", "--json", "--gpus-per-node", gpus, "--", "x")["script"]
    assert f"#SBATCH --ntasks-per-node={ranks}\n" in script


def test_data_on_stdin(tmp_path):
    reader, writer = os.pipe()
    (tmp_path / "empty").touch()
    (tmp_path / "full").write_text("x")
    try:
        assert not run_verb._holds_data(reader)
        os.write(writer, b"x")
        assert run_verb._holds_data(reader)
        for name, is_told in ((os.devnull, False), (tmp_path / "empty", False), (tmp_path / "full", True)):
            with open(name) as file:
                assert run_verb._holds_data(file.fileno()) == is_told
    finally:
        os.close(reader)
        os.close(writer)
    assert not run_verb._holds_data(reader)


def run_here(tmp_path, code, num_ranks=1, **env):
    """``hvdtrain run`` of a piece of Python without MPI."""
    words = [sys.executable, "-m", "hvdtrain.cli.main", "run", "--launcher", "local", "--no-gpus"]
    words += ["-np", str(num_ranks), "--", sys.executable, "-c", code]
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), **env}
    return subprocess.run(
        words, env=environ, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )


def test_a_character_that_the_terminal_lacks_ends_no_job(tmp_path):
    code = "import sys; sys.stdout.buffer.write('\u4e2d\\n'.encode()); print('after')"
    done = run_here(tmp_path, code, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout.split()) == (0, [b"\\u4e2d", b"after"])


def test_a_traceback_that_another_rank_survived_is_shown(tmp_path):
    code = (
        "import os, sys, time, traceback\n"
        "rank, flag = int(os.environ['RANK']), sys.argv[0]\n"
        f"flag = {str(tmp_path / 'printed')!r}\n"
        "if rank == 1:\n"
        "    try:\n"
        "        raise OSError('survived')\n"
        "    except OSError:\n"
        "        traceback.print_exc()\n"
        "        open(flag, 'w').close()\n"
        "    time.sleep(60)\n"
        "while not os.path.exists(flag):\n"
        "    time.sleep(0.02)\n"
        "time.sleep(0.3)\n"
        "raise ValueError('the cause')\n"
    )
    done = run_here(tmp_path, code, 2)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert said.count("[1] OSError: survived") == 1
    assert said.count("ValueError: the cause") == 1
    assert said.index("survived") < said.index("hvdtrain: rank 0 on host") < said.index("the cause")
