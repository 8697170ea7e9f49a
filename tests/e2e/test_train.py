"""``hvdtrain train`` as a user calls it: results, files, foreign launchers."""

import json
import os
import re

import pytest
import yaml
from PIL import Image

from hvdtrain.jobfile import load_job
from hvdtrain.train.checkpoint import load_checkpoint

SHORT = ["--set", "epochs=2", "--set", "model.args.width=8", "--set", "output.tensorboard=false"]


def test_the_run_directory_is_complete(hvdtrain, tmp_path):
    ended = hvdtrain(
        "train", "-np", "2", "--run-dir", "run", "--json", "--set", "epochs=2", "--set", "backend=horovod"
    )
    assert ended.code == 0, ended.err
    result, run = ended.document, tmp_path / "run"
    keys = {"schema", "run_dir", "backend", "size", "epochs", "steps", "loss", "accuracy", "samples_per_s"}
    assert keys <= result.keys()
    assert (result["schema"], result["backend"], result["size"], result["epochs"]) == (1, "horovod", 2, 2)
    assert result["run_dir"] == str(run)
    assert load_job(run / "job.yaml").epochs == 2
    plan = json.loads((run / "plan.json").read_text())
    assert [rank["local_rank"] for rank in plan["ranks"]] == [0, 1]
    assert plan["command"][0].endswith("mpirun")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["validation_accuracy"] == result["accuracy"]
    logged = [line for line in lines if "loss" in line]
    assert [line["step"] for line in logged] == [25, 46]
    assert {"step", "epoch", "loss", "lr", "samples_per_s"} <= logged[0].keys()
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert list((run / "events").glob("events.out.tfevents.*"))
    assert {path.name for path in (run / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}
    assert load_checkpoint(run / "checkpoints" / f"step-{result['steps']}")["step"] == result["steps"]
    assert "2 ranks, backend horovod on cpu, global batch 64" in ended.err
    assert re.search(r"epoch 2/2 .* accuracy 0\.\d+", ended.err)


def test_steps_end_inside_an_epoch(hvdtrain):
    ended = hvdtrain("train", "--json", "--set", "steps=30", "--set", "output.tensorboard=false")
    assert (ended.document["steps"], ended.document["epochs"]) == (30, 2)


def test_ranks_of_a_foreign_mpirun_join(bin_dir, run_program, tmp_path):
    argv = [
        str(bin_dir / "mpirun"),
        "-np",
        "2",
        "--bind-to",
        "none",
        str(bin_dir / "hvdtrain"),
        "train",
        "--json",
    ]
    ended = run_program([*argv, *SHORT])
    assert ended.code == 0, ended.err
    assert (ended.document["size"], ended.document["backend"]) == (2, "horovod")
    assert (tmp_path / "runs" / "digits" / "status.json").exists()


@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_ranks_of_torchrun_join(bin_dir, run_program, backend):
    argv = [str(bin_dir / "torchrun"), "--nproc_per_node", "2", str(bin_dir / "hvdtrain"), "train", "--json"]
    ended = run_program([*argv, *SHORT, "--set", f"backend={backend}"])
    assert ended.code == 0, ended.err
    assert (ended.document["size"], ended.document["backend"]) == (2, backend)


def test_ranks_of_horovodrun_join(bin_dir, run_program, tmp_path):
    argv = [str(bin_dir / "horovodrun"), "--gloo", "-np", "2", str(bin_dir / "hvdtrain"), "train", "--json"]
    env = {"PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}"}
    ended = run_program([*argv, *SHORT], env)
    assert ended.code == 0, ended.err
    (line,) = [line for line in ended.out.splitlines() if line.startswith("[0]<stdout>:")]
    result = json.loads(line.removeprefix("[0]<stdout>:"))
    assert (result["size"], result["backend"]) == (2, "horovod")


def images(folder, classes, count):
    """Images that differ by class: a bright square at another place."""
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            image = Image.new("RGB", (20, 16), (index, 0, 0))
            image.paste((200, 200 - index, 50), (6 * number, 0, 6 * number + 6, 16))
            image.save(folder / name / f"{index}.png")


def test_a_folder_of_images(hvdtrain, tmp_path):
    images(tmp_path / "photos" / "train", ["cat", "dog", "owl"], 12)
    images(tmp_path / "photos" / "validation", ["cat", "dog", "owl"], 3)
    (tmp_path / "photos" / "train" / "dog" / "torn.png").write_bytes(b"no image")
    job = {
        "model": {"name": "resnet18"},
        "data": {"source": "folder", "path": "photos", "image_size": 32, "unreadable": "skip", "workers": 1},
        "batch": {"per_rank": 5},
        "epochs": 2,
        "optimizer": {"name": "adam", "lr": 0.001},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    ended = hvdtrain("train", "job.yaml", "-np", "2", "--json")
    assert ended.code == 0, ended.err
    assert ended.document["accuracy"] > 0.6
    assert ended.err.count("unreadable") == 1
    assert "torn.png" in ended.err


def test_a_factory_of_the_users_beside_the_job_file(hvdtrain, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "parts.py").write_text(
        "import torch\n"
        "def data(count):\n"
        "    x = torch.randn(count, 4); y = (x.sum(dim=1) > 0).long()\n"
        "    full = torch.utils.data.TensorDataset(x, y)\n"
        "    return full, full\n"
        "def model(width):\n"
        "    print('building a net of width', width)\n"
        "    layers = torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)\n"
        "    return torch.nn.Sequential(*layers)\n"
    )
    (tmp_path / "mine" / "job.yaml").write_text(
        "model: {name: 'parts:model', args: {width: 16}}\n"
        "data: {source: 'parts:data', args: {count: 64}}\n"
        "batch: {global: 16}\nepochs: 10\noptimizer: {lr: 0.02}\n"
    )
    ended = hvdtrain("train", "mine/job.yaml", "--json")
    assert ended.code == 0, ended.err
    assert ended.document["accuracy"] > 0.8
    assert ended.err.count("building a net of width 16") == 1


def test_a_dry_run_starts_and_leaves_nothing(hvdtrain, tmp_path):
    ended = hvdtrain("train", "-np", "2", "--dry-run")
    assert ended.code == 0
    assert "-np 2" in ended.out
    assert "--bind-to none" in ended.out
    document = hvdtrain("train", "-np", "2", "--dry-run", "--json").document
    assert (document["size"], document["launcher"]) == (2, "mpirun")
    assert list(tmp_path.iterdir()) == []


def test_schema(hvdtrain):
    assert "batch" in hvdtrain("schema").document["properties"]


def test_help_and_planning_load_no_torch(hvdtrain, tmp_path):
    """A login node has no torch: importing any of these must not need it."""
    for name in ("torch", "horovod", "mpi4py"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    env = {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    for words in (
        ["--help"],
        ["train", "--help"],
        ["train", "-np", "2", "--dry-run", "--set", "backend=ddp"],
        ["schema"],
        ["plan", "-H", "a:2"],
        ["build-horovod", "--help"],
    ):
        ended = hvdtrain(*words, env=env)
        assert ended.code == 0, (words, ended.err)
        assert "was imported" not in ended.out + ended.err
