"""What ``submit --requeue`` adds, so that a job goes on when it runs again."""

import json
import signal

import pytest

from hvdtrain.cli.main import main
from hvdtrain.cli.requeue import requeued
from hvdtrain.errors import InputError
from hvdtrain.jobfile import load_job

NOTHING = {"signal": None, "run_dir": None, "array": None}


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No site file, and nothing of a job around."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("SLURM_JOB_ID", "HVDTRAIN_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.yaml").write_text(
        "name: it\nmodel: digits_cnn\ndata: digits\nepochs: 1\nbatch: {global: 60}\n"
    )
    monkeypatch.chdir(tmp_path)


def script_of(capsys, *words):
    assert main(["submit", "--dry-run", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)["script"]


@pytest.mark.parametrize(
    ("told", "asked", "signals", "at"),
    [
        ([], None, "[SIGTERM,SIGUSR1]", "USR1@60"),
        (["preemption.margin_s=90.5"], None, "[SIGTERM,SIGUSR1]", "USR1@91"),
        (["preemption.signals=[SIGUSR2]"], None, "", "USR2@60"),
        (["preemption.signals=[SIGUSR2]"], "USR1@300", "[SIGUSR2,SIGUSR1]", "USR1@300"),
        ([], "B:SIGTERM@30", "", "B:SIGTERM@30"),
        ([], f"{int(signal.SIGUSR2)}@30", "[SIGTERM,SIGUSR2]", f"{int(signal.SIGUSR2)}@30"),
        (["preemption.margin_s=0"], None, "[SIGTERM,SIGUSR1]", "USR1@1"),
    ],
)
def test_the_training_hears_the_signal_that_announces_its_end(told, asked, signals, at):
    more = requeued(load_job(None, told), {**NOTHING, "signal": asked})
    assert more.words == ("--resume", *(("--set", f"preemption.signals={signals}") if signals else ()))
    assert more.signal == at


def test_a_job_file_needs_no_more(capsys):
    script = script_of(capsys, "--requeue", "job.yaml")
    for line in (
        "#SBATCH --signal=B:USR1@60",
        "#SBATCH --requeue",
        "export HVDTRAIN_RUN_DIR=runs/it-$job",
        "    if ((${SLURM_RESTART_COUNT:-0} < 100)); then",
    ):
        assert line in script.splitlines()
    assert "job.yaml --resume --set 'preemption.signals=[SIGTERM,SIGUSR1]' &\n" in script
    assert "--no-kill" not in script


def test_a_directory_of_ones_own(capsys, tmp_path):
    script = script_of(capsys, "--requeue", "--max-requeues", "3", "--run-dir", "here", "job.yaml")
    assert f"--run-dir {tmp_path}/here --resume" in script
    assert "HVDTRAIN_RUN_DIR" not in script
    assert "< 3))" in script


def test_without_it_nothing_is_added(capsys):
    script = script_of(capsys, "job.yaml")
    assert "--resume" not in script
    assert "scontrol" not in script
    assert "--signal" not in script


def test_the_signal_of_sbatch_is_the_signal(capsys):
    script = script_of(capsys, "--requeue", "--sbatch", "signal=B:USR2@600", "job.yaml")
    assert "#SBATCH --signal=B:USR2@600" in script.splitlines()
    assert "--set 'preemption.signals=[SIGTERM,SIGUSR2]' &\n" in script


def test_a_program_is_left_as_it_is(capsys):
    script = script_of(capsys, "--requeue", "--", "python", "p.py")
    assert "-- python p.py &\n" in script
    assert "--signal" not in script
    assert "HVDTRAIN_RUN_DIR" not in script


def test_restarts_are_the_launchers_and_keep_the_allocation(capsys):
    script = script_of(capsys, "--nodes=2", "--max-restarts", "3", "--min-ranks", "2", "--", "prog")
    assert "#SBATCH --no-kill" in script.splitlines()
    assert "run --max-restarts=3 --min-ranks=2 \\\n  -- prog" in script


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-requeues", "3", "job.yaml"], "--max-requeues: given without --requeue"),
        (["--min-ranks", "3", "job.yaml"], "--min-ranks: given without --max-restarts"),
        (["--requeue", "--array", "0-3", "--run-dir", "x", "job.yaml"], "every element of --array 0-3"),
        (["--requeue", "--sbatch=array=0-3", "--run-dir", "x", "job.yaml"], "every element of --array 0-3"),
        (["--requeue", "--signal", "HUP@30", "job.yaml"], "--signal: 'HUP@30' with --requeue"),
        (["--requeue", "--sbatch", "signal=B:KILL@9", "job.yaml"], "--signal: 'B:KILL@9' with --requeue"),
        (["--requeue", "--max-requeues", "9" * 5000, "job.yaml"], "'--max-requeues'"),
        (["--max-restarts=3", "--min-ranks=9", "--nodes=2", "--ranks-per-node=4", "--", "true"], "9 of 8"),
    ],
)
def test_refusals(capsys, words, message):
    assert main(["submit", "--dry-run", *words]) == 2
    assert message in capsys.readouterr().err


def test_elements_of_an_array_would_share_a_run():
    with pytest.raises(InputError, match="omit it: with --requeue each element has a directory of its own"):
        requeued(load_job(None, []), {**NOTHING, "run_dir": "x", "array": "0-3"})
