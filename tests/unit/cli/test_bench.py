"""bench as a command, without starting ranks: what it reads, refuses and would start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.cli.main import main

OUTPUTS = Path(__file__).parents[1] / "measure" / "outputs"
JOB = """
data: {source: synthetic, shape: [3, 8, 8], classes: 4, samples: 40, validation_samples: 4}
model: {name: mlp}
batch: {global: 8}
epochs: 1
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No site file, and no launcher or scheduler around."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "OMPI_COMM_WORLD_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def document(capsys, *words):
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *words):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line.removeprefix("hvdtrain: error: ")


def test_dry_run_is_the_command_and_the_request(capsys):
    words = ["-np", "3", "--sizes", "8..1K", "--library", "mpi", "--dtype", "float32,float16", "--no-gpus"]
    told = document(capsys, "bench", "allreduce", *words, "--dry-run", "--json")
    assert told["command"][-3:] == ["-P", "-m", "hvdtrain.tools.bench_allreduce"]
    assert json.loads(told["env"]["HVDTRAIN_BENCH_REQUEST"]) == {
        "sizes": [8, 32, 128, 512, 1024],
        "factor": 4,
        "dtypes": ["float32", "float16"],
        "libraries": ["mpi"],
        "repeat": 200,
        "limit_s": 60.0,
        "on_cpu": True,
    }


def test_dry_run_of_a_step_holds_its_job(capsys, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    words = ["job.yaml", "-np", "2", "--steps", "7", "--set", "batch.global=4", "--dry-run", "--json"]
    told = document(capsys, "bench", "step", *words)
    assert told["command"][-1] == "hvdtrain.tools.bench_step"
    assert told["env"]["HVDTRAIN_BENCH_STEPS"] == "7"
    assert json.loads(told["env"]["HVDTRAIN_JOB"])["batch"] == {"global": 4}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["allreduce", "-np", "1"], "-np: an allreduce over 1 rank moves nothing; legal: 2 or more"),
        (["allreduce"], "-np: an allreduce over 1 rank moves nothing; legal: 2 or more"),
        (["allreduce", "-np", "2", "--sizes", "8..X"], "--sizes: 'X' is no size of a buffer; legal: bytes"),
        (["allreduce", "-np", "2", "--sizes", ""], "--sizes: '' is no size of a buffer"),
        (["allreduce", "-np", "2", "--sizes", "6"], "6 bytes are no whole number of float32 elements"),
        (["allreduce", "-np", "2", "--dtype", "int8"], "--dtype: 'int8'; legal: float32, float16"),
        (["allreduce", "-np", "2", "--library", "mpi,nccl"], "--library: 'nccl'; legal: horovod, mpi, torch"),
        (["allreduce", "-np", "2", "--factor", "3"], "Invalid value for '--factor': '3' is not one of"),
        (["allreduce", "-np", "2", "--repeat", "0"], "Invalid value for '--repeat'"),
        (["allreduce", "-np", "2", "--limit", "nan"], "'--limit': nan is no number of seconds"),
        (["import", "none.txt", "-np", "9" * 5000], "must be a whole number from 1 to 1000000"),
        (["loader", "--workers", "9" * 5000], "legal: different numbers from 0 to 1024"),
        (["allreduce", "-np", "2", "--limit", "0"], "Invalid value for '--limit'"),
        (["allreduce", "-np", "2", "--output", "net.json"], "--output: net.json is to be a folder"),
        (["allreduce", "-np", "2", "--launcher", "pigeon"], "--launcher: no launcher 'pigeon'"),
        (["allreduce", "-np", "3", "-H", "a:1,b:1"], "3 ranks asked for, but 2 hosts of -H have 2 slots"),
        (["import", "none.txt"], "none.txt: cannot be read: No such file or directory"),
        (["import", "none.txt", "-np", "2", "-H", "a:2"], "-np and -H both tell the number of ranks"),
        (["import", ""], "Invalid value for 'FILE': the path is empty"),
        (["loader", "--workers", "0,x"], "--workers: 'x'; legal: different numbers from 0 to 1024: 0,2,4"),
        (["loader", "--workers", "1,1"], "--workers: '1'; legal: different numbers"),
        (["loader", "none.yaml"], "none.yaml"),
        (["step", "-np", "128"], "batch.global: 64 samples for 128 ranks leave a rank without data"),
        (["step", "--steps", "0"], "Invalid value for '--steps'"),
        (["step", "--set", "batches=3"], "batches"),
    ],
)
def test_bad_input_is_one_line(capsys, words, message):
    assert message in refusal(capsys, "bench", *words)


@pytest.mark.parametrize("verb", ["allreduce", "import", "loader", "step"])
def test_help_has_examples(capsys, verb):
    assert main(["bench", verb, "--help"]) == 0
    assert f"\n  hvdtrain bench {verb}" in capsys.readouterr().out


def test_inside_a_launch_nothing_more_can_be_started(capsys, monkeypatch):
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "SIZE": 2, "LOCAL_SIZE": 2}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    bench = ["bench", "allreduce"]
    assert "-np 3 inside a launch of 2 ranks by openmpi" in refusal(capsys, *bench, "-np", "3")
    assert "--hosts inside a launch by openmpi" in refusal(capsys, *bench, "-H", "a:2")
    assert "--timeout inside a launch by openmpi" in refusal(capsys, *bench, "--timeout", "3")
    assert "--dry-run inside a launch" in refusal(capsys, *bench, "--dry-run")
    assert "bench loader inside a launch by openmpi" in refusal(capsys, "bench", "loader")
    assert "bench step starts its ranks itself" in refusal(capsys, "bench", "step")


def test_import_as_json_and_in_a_file(capsys, tmp_path):
    told = document(
        capsys, "bench", "import", str(OUTPUTS / "nccl-8-ranks.txt"), "--save", "net.json", "--json"
    )
    assert (told["size"], told["library"], len(told["rows"])) == (8, "nccl", 8)
    assert json.loads((tmp_path / "net.json").read_text()) == told


def test_import_for_people(capsys):
    assert main(["bench", "import", str(OUTPUTS / "osu-5.9.txt"), "-H", "a:2,b:2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "allreduce in place, 4 ranks on 2 hosts: a (2), b (2); GB = 1e9 B"
    assert out[-2].split() == ["mpi", "4", "float32", "1048576", "1", "MiB", "149.80", "7.000", "10.500", "-"]
    assert out[-1].startswith("mpi between hosts, 4 ranks as a ring: alpha ")


def test_an_error_of_import_is_a_document_too(capsys, tmp_path):
    text = (OUTPUTS / "nccl-8-ranks.txt").read_text()
    (tmp_path / "cut.txt").write_text(text[: text.index("   27.76")])
    assert main(["bench", "import", "cut.txt", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["error"].startswith("cut.txt:20: 9 columns instead of 13")


def test_a_document_that_cannot_be_written(capsys):
    words = ["bench", "import", str(OUTPUTS / "nccl-8-ranks.txt"), "--json", "--save", "no/net.json"]
    assert main(words) == 2
    assert "--save: there is no folder no; make it first" in capsys.readouterr().err


def test_the_loader_of_a_job(hvdtrain, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    words = ["job.yaml", "--workers", "0,1", "--batches", "11", "--json"]
    told = hvdtrain("bench", "loader", *words).document
    assert {key: told[key] for key in ("schema", "kind", "batch")} == {
        "schema": 1,
        "kind": "loader",
        "batch": 8,
    }
    assert told["cores"] >= 1
    read = [(row["workers"], row["batches"], row["samples"]) for row in told["rows"]]
    assert read == [(0, 11, 88), (1, 11, 88)]
    for row in told["rows"]:
        assert row["samples_per_s"] == pytest.approx(row["samples"] / row["seconds"])
        assert row["first_batch_s"] > 0
    assert told["rows"][0]["cpu_s_per_sample"] > 0
    assert told["rows"][1]["cpu_s_per_sample"] is None


def test_a_loader_whose_data_cannot_be_read(hvdtrain):
    ended = hvdtrain("bench", "loader", "--set", "data={source: folder, path: nowhere}")
    assert ended.code == 2
    assert "nowhere" in ended.error


def test_a_login_node_answers_without_torch():
    code = (
        "import sys\nfrom hvdtrain.cli.main import main\n"
        f"main(['bench', 'import', {str(OUTPUTS / 'nccl-8-ranks.txt')!r}])\n"
        "main(['bench', 'allreduce', '-np', '2', '--dry-run'])\nmain(['bench', 'step', '--help'])\n"
        "print(sorted({'torch', 'horovod', 'mpi4py', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"
