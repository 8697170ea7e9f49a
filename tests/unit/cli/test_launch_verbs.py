"""run, whoami and submit as commands, without starting anything on other hosts."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hvdtrain
from hvdtrain.cli.main import main


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No site file, and no launcher or scheduler around."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "OMPI_COMM_WORLD_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def document(capsys, *words):
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


def test_dry_run_is_the_command_the_environment_and_the_ranks(capsys):
    told = document(capsys, "run", "-np", "3", "--dry-run", "--json", "--env", "A=b c", "--", "prog", "a b")
    assert told["command"][-3:] == ["--", "prog", "a b"]
    assert told["env"]["A"] == "b c"
    assert [(rank["rank"], rank["host"], rank["local_rank"]) for rank in told["ranks"]] == [
        (0, "localhost", 0),
        (1, "localhost", 1),
        (2, "localhost", 2),
    ]


def test_hosts_that_do_not_answer_are_no_error_of_a_dry_run(capsys):
    """Case C11."""
    words = ["--launcher", "mpirun", "-H", "a.invalid:4,b.invalid:4", "--dry-run", "--json"]
    told = document(capsys, "run", *words, "--", "train.py")
    command = " ".join(told["command"])
    assert "-np 8 -H a.invalid:4,b.invalid:4 --bind-to none --map-by slot" in command
    assert "oversubscribe" not in command
    assert "-x PATH" in command
    assert any("could not be asked" in note for note in told["notes"])


HOSTFILES = sorted((Path(__file__).parents[3] / "hostfiles").iterdir())


@pytest.mark.parametrize("path", HOSTFILES, ids=lambda path: path.name)
def test_sample_hostfiles_are_rendered(capsys, path):
    words = ["--hostfile", str(path), "--launcher", "mpirun", "--nic", "none", "--dry-run", "--json"]
    told = document(capsys, "run", *words, "--", "true")
    command = told["command"]
    listed = command[command.index("-H") + 1]
    assert (
        sum(int(word.rpartition(":")[2]) for word in listed.split(",")) == told["size"] == len(told["ranks"])
    )
    assert command[command.index("-np") + 1] == str(told["size"])


def test_tuning_and_binding(capsys):
    words = ["--tune", "cycle_ms=0.5", "--tune", "fusion_mb=16", "--cores-per-rank", "1", "--no-gpus"]
    told = document(capsys, "run", "--dry-run", "--json", *words, "--", "prog")
    assert (told["env"]["HOROVOD_CYCLE_TIME"], told["env"]["HOROVOD_FUSION_THRESHOLD"]) == ("0.5", "16777216")
    command = told["command"]
    assert command[command.index("--bind") + 1] == "core:1"
    assert told["env"]["OMP_NUM_THREADS"] == "1"


def test_prefix_and_site(capsys, tmp_path):
    (tmp_path / "hvdtrain").mkdir()
    site = tmp_path / "hvdtrain" / "site.yaml"
    site.write_text("prefix: apptainer exec 'my image.sif'\nlauncher: local\n")
    told = document(capsys, "run", "--dry-run", "--json", "--", "prog")
    assert told["launcher"] == "local"
    assert told["command"][-4:] == ["apptainer", "exec", "my image.sif", "prog"]
    words = ["--dry-run", "--json", "--prefix", "", "--launcher", "mpirun"]
    told = document(capsys, "run", *words, "--", "prog")
    assert (told["launcher"], told["command"][-2:]) == ("mpirun", ["--", "prog"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "no program to run"),
        (["run", "--launcher", "mpi", "--", "x"], "no launcher 'mpi'"),
        (["run", "--env", "NOT_SET_HERE", "--", "x"], "--env: NOT_SET_HERE is not set here"),
        (["run", "--prefix", "'", "--", "x"], "--prefix: "),
        (["run", "--tune", "cycle=1", "--", "x"], "cycle_ms"),
        (["run", "-H", "a:1,b:1", "--nic", "lo", "--dry-run", "--", "x"], "--nic: lo leads nowhere"),
        (["run", "-H", "a:2", "b:2", "x"], "one list, separated by commas"),
        (["submit"], "nothing to submit"),
        (["submit", "--set", "a=b", "--", "x"], "--set: a program has no job file"),
        (["submit", "--dry-run", "none.yaml"], "no such job file"),
        (["cancel", "x"], "no job id: 'x'"),
    ],
)
def test_refusals(capsys, words, message):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_whoami_of_a_lone_process_and_of_a_rank(capsys, monkeypatch):
    told = document(capsys, "whoami", "--json")
    assert (told["rank"], told["size"], told["launcher"], told["device"]) == (0, 1, "single", None)
    for name, value in {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert document(capsys, "whoami", "--json")["local_rank"] == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    assert main(["whoami"]) == 2
    assert "contradict" in capsys.readouterr().err


def test_submit_shows_its_script(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    words = ["--nodes", "2", "--gpus-per-node", "4", "--env", "A=b c", "--signal", "USR1@60"]
    told = document(capsys, "submit", "--dry-run", "--json", *words, "--", "prog", "a b")
    script = told["script"].splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4", "#SBATCH --signal=B:USR1@60"} <= set(script)
    (exported,) = [line for line in script if line.startswith("#SBATCH --export=")]
    names = exported.partition("=")[2].split(",")
    assert {"A", "PATH", "HOME"} <= set(names)
    assert "HF_TOKEN" not in names
    assert told["env"] == {"A": "b c"}
    assert script[-1] == "  -- prog 'a b'"
    assert "--env=A" in script[-2]


def test_job_file_is_trained(capsys, tmp_path):
    shutil.copy(Path(hvdtrain.__file__).parent / "digits.yaml", tmp_path / "my job.yaml")
    assert main(["submit", "--dry-run", "--set", "epochs=2", str(tmp_path / "my job.yaml")]) == 0
    script = capsys.readouterr().out
    assert '#SBATCH --job-name="my job"' in script
    assert f"train '{tmp_path}/my job.yaml' --set epochs=2" in script


def test_login_nodes_load_nothing_heavy():
    code = (
        "import sys\nfrom hvdtrain.cli.main import main\n"
        "main(['run', '--dry-run', '--json', '--', 'true'])\nmain(['submit', '--dry-run', '--', 'true'])\n"
        "heavy = {'torch', 'horovod', 'mpi4py', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_job_whose_batch_the_ranks_cannot_share_is_not_submitted(capsys, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("model: digits_cnn\ndata: digits\nbatch: {global: 3}\nepochs: 1\n")
    words = ("submit", "--dry-run", "--nodes", "2", "--ranks-per-node")
    assert main([*words, "2", str(job)]) == 2
    assert "batch.global: 3 samples for 4 ranks leave a rank without data" in capsys.readouterr().err
    assert main([*words, "2", "--sbatch", "nodes=1-2", str(job)]) == 0  # Slurm is to choose how many


def test_a_job_file_and_a_program_are_not_submitted_together(capsys, tmp_path):
    path = tmp_path / "photos.yaml"
    path.write_text("model: digits_cnn\ndata: digits\nepochs: 1\n")
    for words in (("--dry-run", str(path)), (str(path), "--dry-run")):
        assert main(("submit", *words, "--", "python", "x.py")) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert f"a job file or a program, not both: {path} and python; legal: JOB.yaml, or" in told.err
