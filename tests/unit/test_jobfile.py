"""The job file: what is accepted, and the one line that everything else gets."""

from pathlib import Path

import pytest
import yaml

from hvdtrain.config import Job
from hvdtrain.errors import ExitCode, InputError
from hvdtrain.jobfile import load_job

MINIMAL = "model: digits_cnn\ndata: digits\nbatch: {global: 64}\nepochs: 2\n"


@pytest.fixture
def written(tmp_path):
    def write(text: str, name: str = "job.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refusal(path: Path | None, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_job(path, overrides)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_bundled_job_trains_digits():
    job = load_job(None)
    assert (job.name, job.data.source, job.model.name) == ("digits", "digits", "digits_cnn")
    assert job.global_batch(4) == 64
    assert job.rank_batch(2) == 32


def test_short_forms_and_the_name_of_the_file(written):
    job = load_job(written(MINIMAL, "my run (2).yaml"))
    assert job.name == "my-run--2-"
    assert job.model.name == "digits_cnn"


def test_a_resolved_job_reads_back_as_itself(written):
    for optimizer in ("{name: sgd, lr: 1e-1, momentum: 0.9}", "{name: adamw, lr: 0.01}"):
        job = load_job(written(MINIMAL + f"optimizer: {optimizer}\ntuning: {{timeline: t.json}}\n"))
        assert load_job(written(job.as_yaml())) == job


def test_overrides_take_yaml_values_and_the_last_one_wins(written):
    path = written(MINIMAL)
    job = load_job(
        path, ["optimizer.lr=1e-1", "optimizer.lr=0.5", "tuning.autotune=true", "model.args.width=8"]
    )
    assert job.optimizer.lr == 0.5
    assert job.tuning.autotune is True
    assert job.model.args == {"width": 8}


def test_an_override_replaces_the_other_of_a_pair(written):
    job = load_job(written(MINIMAL), ["batch.per_rank=8", "steps=5"])
    assert (job.batch.global_, job.batch.per_rank, job.epochs, job.steps) == (None, 8, None, 5)


def test_two_overrides_of_a_pair_are_refused(written):
    assert "found both" in refusal(written(MINIMAL), "batch.per_rank=8", "batch.global=16")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty"]),
        ("# nothing\n", ["is empty"]),
        ("- a\n- b\n", ["a list", "a mapping"]),
        ("just words\n", ["a text"]),
        ("a: [1,\n", [":2: not YAML"]),
        ("model:\n\tx: 1\n", [":2: not YAML"]),
        ("!!python/object/apply:os.system ['true']\n", ["not YAML"]),
        (MINIMAL + "modle: x\n", [":5: unknown key 'modle'", "did you mean 'model'?"]),
        (
            MINIMAL + "optimizer: {learning_rte: 1}\n",
            ["unknown key 'optimizer.learning_rte'", "legal: name, lr"],
        ),
        ("model: digits_cnn\ndata: {source: digits, wrkers: 1}\nepochs: 1\n", ["did you mean 'workers'?"]),
        (MINIMAL + "epochs: 3\n", [":5: key 'epochs' is given twice", "line 4"]),
        (MINIMAL.replace("epochs: 2", "epochs: yes"), [":4: epochs:", "not true"]),
        (MINIMAL.replace("epochs: 2", "epochs: 2.5"), [":4: epochs:", "2.5"]),
        (MINIMAL.replace("epochs: 2", "epochs: two"), [":4: epochs:", "'two'"]),
        (MINIMAL.replace("epochs: 2", "epochs: 0"), ["epochs: must be greater than or equal to 1, found 0"]),
        (MINIMAL.replace("64", "-64"), [":3: batch.global:", "-64"]),
        (MINIMAL.replace("64", "0"), [":3: batch.global:", "found 0"]),
        (MINIMAL.replace("{global: 64}", "{global: 64, per_rank: 2}"), [":3: batch:", "found both"]),
        (MINIMAL.replace("{global: 64}", "{}"), [":3: batch:", "found neither"]),
        (
            MINIMAL.replace("{global: 64}", "64"),
            ["batch must be a section, found 64", "legal: global, per_rank"],
        ),
        (MINIMAL.replace("epochs: 2", "tuning: {}"), ["exactly one of epochs and steps", "found neither"]),
        (MINIMAL + "steps: 3\n", ["found both"]),
        (MINIMAL.replace("data: digits", "data: digitz"), [":2: data:", "'digitz'", "synthetic"]),
        (MINIMAL.replace("data: digits", "data: {source: folder}"), [":2: key 'data.path' is missing"]),
        (MINIMAL + "optimizer:\n  name: sgd\n  lr: .nan\n", [":7: optimizer.lr:"]),
        (MINIMAL + "optimizer:\n  name: adam\n  momentum: 0.9\n", ["momentum is not used by adam"]),
        (MINIMAL + "tuning: {compression: bf16}\n", ["tuning.compression", "'none' or 'fp16'", "bf16"]),
        (MINIMAL + "backend: nccl\n", [":5: backend:", "'horovod'", "'nccl'"]),
        (MINIMAL + "seed: -1\n", [":5: seed:"]),
        (MINIMAL + "name: ../up\n", [":5: name:"]),
    ],
)
def test_what_is_wrong_is_named_with_its_line(written, text, parts):
    path = written(text)
    line = refusal(path)
    assert line.startswith(str(path))
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("optimizer.lr", "not of the form key=value"),
        ("=3", "not of the form key=value"),
        ("optimizer..lr=3", "not of the form key=value"),
        ("optimzer.lr=3", "did you mean 'optimizer'?"),
        ("epochs.x=3", "holds a value, not a section"),
        ("epochs=[1", "--set epochs=[1: epochs:"),
        ("optimizer.lr=-1", "--set optimizer.lr=-1: optimizer.lr:"),
    ],
)
def test_a_wrong_override_is_named(written, override, part):
    line = refusal(written(MINIMAL), override)
    assert line.startswith(f"--set {override}")
    assert part in line


def test_files_that_cannot_be_read(tmp_path):
    assert "no such job file" in refusal(tmp_path / "none.yaml")
    assert "is a folder" in refusal(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    assert "UTF-8" in refusal(tmp_path / "latin.yaml")


def test_the_schema_names_the_keys_as_they_are_written():
    schema = Job.model_json_schema(by_alias=True)
    assert "global" in schema["$defs"]["BatchConfig"]["properties"]
    assert yaml.safe_load(load_job(None).as_yaml()).keys() <= schema["properties"].keys()
