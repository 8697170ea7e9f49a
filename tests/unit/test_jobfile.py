"""The job file: what is accepted, and the one line that everything else gets."""

from pathlib import Path

import jsonschema
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


def test_short_forms_and_the_name_of_the_file(written):
    job = load_job(written(MINIMAL, "my run (2).yaml"))
    assert job.name == "my-run--2-"
    assert job.model.name == "digits_cnn"


@pytest.mark.parametrize(
    "text",
    [
        "optimizer: {name: sgd, lr: 1e-1, momentum: 0.9}\ntuning: {timeline: t.json}\n",
        "optimizer: {name: adamw, lr: 0.01, betas: [0.5, 0.9]}\n",
        "schedule: {name: cosine, final_fraction: 0.1}\n",
        "schedule: {name: polynomial, power: 2, final_fraction: 0.1}\n",
        "schedule: {name: step, step_epochs: 3, step_factor: 0.5}\n",
        "schedule: {scaling: linear, base_batch: 256}\nmetrics: [top5, auroc, 'm:f']\n",
        "optimizer: {name: lars, momentum: 0.9, trust_coefficient: 0.002, eps: 1e-9}\n",
        "optimizer: {name: lamb, betas: [0.5, 0.9], eps: 1e-9, exclude_1d: no}\n",
    ],
)
def test_a_resolved_job_reads_back_as_itself(written, text):
    job = load_job(written(MINIMAL + text))
    assert load_job(written(job.as_yaml())) == job
    assert sent_to_a_rank(job) == job


def sent_to_a_rank(job: Job) -> Job:
    """The job as a rank gets it (``hvdtrain.train.launching``)."""
    return Job.model_validate_json(job.model_dump_json(by_alias=True, exclude_unset=True))


def with_args(text: str) -> str:
    return MINIMAL.replace("digits_cnn", f"{{name: 'm:f', args: {text}}}")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{width: 64, rate: 0.1, large: 1.0e+300, whole: 2.0, deep: {a: [1, {b: null}]}, on_: yes}",
        "{'1': 64, text: '2024-01-01', word: 'null', 'yes': no, n: 36893488147419103232, u: \"\\u00e9\\0\"}",
    ],
)
def test_arguments_reach_the_ranks_as_they_are(written, text):
    job = load_job(written(with_args(text)))
    assert job.model.args == yaml.safe_load(text)
    for other in (sent_to_a_rank(job), load_job(written(job.as_yaml()))):
        # as text, since 2 == 2.0 == True
        assert repr(other.model.args) == repr(job.model.args)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{1: 64}", "model.args: keys must be text, found 1: quote it"),
        ("{a: {on: 1}}", "model.args.a: keys must be text, found True: quote it"),
        ("{a: .inf}", "model.args.a: must be a finite number, found inf"),
        ("{a: [0, {b: .nan}]}", "model.args.a.1.b: must be a finite number, found nan"),
        ("{a: 2024-01-31}", "found date 2024-01-31: quote it if it is text"),
        (
            "{a: !!set {x}}",
            "model.args.a: must be text, a number, true, false, null, a list or a mapping, found set",
        ),
        ("{a: !!binary aGk=}", "found bytes b'hi'"),
        ('{a: "\\ud800"}', r"found str '\ud800'"),
        ("{a: " + "[" * 70 + "]" * 70 + "}", "model.args.a: must not be nested deeper than 64 levels"),
    ],
)
def test_arguments_that_would_reach_the_ranks_as_something_else(written, text, said):
    path = written(with_args(text))
    line = refusal(path)
    assert line.startswith(f"{path}:1: model.args")
    assert said in line
    data = MINIMAL.replace("data: digits", f"data: {{source: 'm:f', args: {text}}}")
    assert said.replace("model.", "data.") in refusal(written(data))


def test_a_leading_tilde_is_the_home_folder(written, monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/mine")
    text = MINIMAL.replace("digits\nbatch", "{source: folder, path: ~/photos}\nbatch")
    job = load_job(written(text + "output: {dir: ~/runs}\ntuning: {timeline: ~/t.json}\n"))
    assert job.data.path == Path("/home/of/mine/photos")
    assert job.output.dir == Path("/home/of/mine/runs")
    assert job.tuning.timeline == Path("/home/of/mine/t.json")
    assert load_job(written(MINIMAL), ["output.dir=a/~b"]).output.dir == Path("a/~b")


@pytest.mark.parametrize("value", ["1e-1", "0.1", "1", "+.1"])
def test_real_numbers_in_all_forms(written, value):
    assert load_job(written(MINIMAL + f"optimizer: {{lr: {value}}}\n")).optimizer.lr in (0.1, 1)


def test_the_keys_of_a_short_form_can_be_set(written):
    job = load_job(written(MINIMAL), ["data.workers=2", "model.args.width=8"])
    assert (job.data.source, job.data.workers) == ("digits", 2)
    assert (job.model.name, job.model.args) == ("digits_cnn", {"width": 8})


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
        ("a: &x [*x]\n", [":1: an alias (*) names a value that it is itself a part of"]),
        (MINIMAL + "optimizer: &x\n  <<: *x\n", [":5: an alias"]),
        (MINIMAL + "a: " + "[" * 2000, ["nested too deeply"]),
        (MINIMAL + "name: 2024-13-01\n", ["not YAML: month must be in 1..12"]),
        (MINIMAL + "1: 2\n", [":5: key 1 is no text; legal: name, model"]),
        (MINIMAL + "epochs: 3\n", [":5: key 'epochs' is given twice", "line 4"]),
        (MINIMAL.replace("epochs: 2", "epochs: yes"), [":4: epochs: must be a whole number, found true"]),
        (MINIMAL.replace("epochs: 2", "epochs: 2.5"), [":4: epochs:", "2.5"]),
        (MINIMAL.replace("epochs: 2", "epochs: 3.0"), [":4: epochs: must be a whole number, found 3.0"]),
        (MINIMAL.replace("epochs: 2", "epochs: '3'"), [":4: epochs: must be a whole number, found '3'"]),
        (MINIMAL.replace("64", "'64'"), [":3: batch.global: must be a whole number, found '64'"]),
        (MINIMAL + "seed: '1'\n", [":5: seed: must be a whole number, found '1'"]),
        (MINIMAL + "tuning: {autotune: 'yes'}\n", [":5: tuning.autotune: must be true or false"]),
        (
            MINIMAL + "schedule: {name: step, step_factor: yes}\n",
            ["schedule.step_factor: must be a number"],
        ),
        (MINIMAL.replace("epochs: 2", "epochs: two"), [":4: epochs:", "'two'"]),
        (MINIMAL.replace("epochs: 2", "epochs: 0"), ["epochs: must be at least 1, found 0"]),
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
        (
            MINIMAL.replace("data: digits", "data: folder"),
            [":2: key 'data.path' is missing", "legal: source, path"],
        ),
        (MINIMAL.replace("data: digits", "data: [1]"), [":2: data: data.source must be digits"]),
        (MINIMAL.replace("data: digits", "data: 'a.b:c.'"), ["data.source: must be package.module:factory"]),
        (MINIMAL.replace("data: digits", "data: 'a..b:c'"), ["data.source: must be package.module:factory"]),
        (
            MINIMAL.replace("data: digits", "data: {source: folder, path: x, channels: yes}"),
            ["data.channels: must be a whole number, found true"],
        ),
        (
            MINIMAL.replace("data: digits", "data: {source: folder, path: ~no-such-user/x}"),
            ["data.path: ~no-such-user is no user's home folder"],
        ),
        (MINIMAL + 'output: {dir: "a\\0b"}\n', ["output.dir: must be a path"]),
        (MINIMAL + "optimizer:\n  name: sgd\n  lr: .nan\n", [":7: optimizer.lr:"]),
        (MINIMAL + "optimizer:\n  name: adam\n  momentum: 0.9\n", ["momentum is not used by adam"]),
        (MINIMAL + "schedule: {power: 2}\n", [":5: schedule: power is not used by constant"]),
        (MINIMAL + "schedule: {final_fraction: 0.1}\n", ["final_fraction is not used by constant"]),
        (MINIMAL + "schedule: {name: cosine, step_epochs: 2}\n", ["step_epochs is not used by cosine"]),
        (
            MINIMAL + "schedule: {name: polynomial, step_factor: 0.5}\n",
            ["step_factor is not used by polynomial"],
        ),
        (MINIMAL + "schedule: {name: step, final_fraction: 0.5}\n", ["final_fraction is not used by step"]),
        (MINIMAL + "optimizer: {name: lamb, momentum: 0.9}\n", ["momentum is not used by lamb"]),
        (MINIMAL + "optimizer: {name: lars, nesterov: yes}\n", ["nesterov is not used by lars"]),
        (MINIMAL + "optimizer: {name: sgd, eps: 0.1}\n", [":5: optimizer: eps is not used by sgd"]),
        (
            MINIMAL + "optimizer: {name: lamb, trust_coefficient: 1}\n",
            ["trust_coefficient is not used by lamb"],
        ),
        (
            MINIMAL + "optimizer: {name: lars, trust_coefficient: 0}\n",
            ["optimizer.trust_coefficient: must be"],
        ),
        (MINIMAL + "optimizer: {exclude_1d: 1}\n", ["optimizer.exclude_1d: must be true or false"]),
        (MINIMAL + "schedule: {scaling: sqrt}\n", [":5: schedule: scaling sqrt needs base_batch"]),
        (MINIMAL + "schedule: {base_batch: 64}\n", [":5: schedule: base_batch is not used by scaling none"]),
        (MINIMAL + "schedule: {scaling: cubic, base_batch: 64}\n", ["schedule.scaling: must be", "'cubic'"]),
        (
            MINIMAL + "schedule: {scaling: linear, base_batch: 0}\n",
            ["schedule.base_batch: must be", "found 0"],
        ),
        (
            MINIMAL + "metrics:\n- accuracy\n- aucroc\n",
            [":7: metrics (value 2): must be accuracy, auroc", "'aucroc'"],
        ),
        (MINIMAL + "metrics: [top0]\n", ["metrics (value 1): must be", "'top0'"]),
        (MINIMAL + "metrics: [f1, 'm:f1']\n", [":5: metrics: two metrics are called f1"]),
        (MINIMAL + "metrics: accuracy\n", [":5: metrics: must be"]),
        (MINIMAL + "optimizer: {name: sgd, betas: [0.9, 0.99]}\n", ["betas is not used by sgd"]),
        (MINIMAL + "optimizer: {name: sgd, nesterov: yes}\n", ["nesterov needs a momentum above 0"]),
        (
            MINIMAL + "tuning: {compression: zstd}\n",
            ["tuning.compression", "'none', 'fp16' or 'bf16'", "zstd"],
        ),
        (MINIMAL + "backend: nccl\n", [":5: backend:", "'horovod'", "'nccl'"]),
        (MINIMAL + "seed: -1\n", [":5: seed:"]),
        (MINIMAL + "name: ../up\n", [":5: name: must begin with a letter", "found '../up'"]),
        (MINIMAL + f"name: {'x' * 201}\n", [":5: name: must have at most 200 characters"]),
        (MINIMAL + "output: {dir: ''}\n", [":5: output.dir: must be a path, found ''"]),
        (MINIMAL + "output: {dir: 3}\n", [":5: output.dir: must be a path, found 3"]),
        (MINIMAL + "tuning: {timeline: ' '}\n", [":5: tuning.timeline: must be a path"]),
        (
            MINIMAL.replace("data: digits", "data: {source: folder, path: ''}"),
            [":2: data.path: must be a path, found ''"],
        ),
        (
            MINIMAL.replace("data: digits", "data: {source: folder, path: x, train: ''}"),
            [":2: data.train: must not be empty"],
        ),
        (MINIMAL.replace("digits_cnn", "':build'"), [":1: model.name: must be a model's name", "':build'"]),
        (MINIMAL.replace("digits_cnn", "''"), [":1: model.name: must be a model's name"]),
        (MINIMAL.replace("digits_cnn", "'torchvision:'"), ["model.name: must be a model's name"]),
        (
            MINIMAL + "seed: 9223372036854775808\n",
            ["seed: must be at most 9223372036854775807, found 922337"],
        ),
        (MINIMAL.replace("64", "4294967297"), ["batch.global: must be at most 4294967296, found 4294967297"]),
        (MINIMAL.replace("epochs: 2", "epochs: 1000001"), ["epochs: must be at most 1000000"]),
        (MINIMAL.replace("epochs: 2", "steps: 1000000000001"), ["steps: must be at most 1000000000000"]),
        (
            MINIMAL.replace("data: digits", "data: {source: digits, workers: 1025}"),
            [":2: data.workers: must be at most 1024, found 1025"],
        ),
        (
            MINIMAL.replace("data: digits", "data: {source: folder, path: x, image_size: 65537}"),
            ["data.image_size: must be at most 65536"],
        ),
        (MINIMAL + "tuning: {fusion_mb: 65537}\n", ["tuning.fusion_mb: must be at most 65536, found 65537"]),
        (MINIMAL + "tuning: {cycle_ms: 60001}\n", ["tuning.cycle_ms: must be at most 60000"]),
        (MINIMAL + "tuning: {cycle_ms: 0}\n", ["tuning.cycle_ms: must be above 0, found 0"]),
        (
            MINIMAL + "optimizer: {name: adam, betas: [0.9, 1]}\n",
            [":5: optimizer.betas (value 2): must be below 1, found 1"],
        ),
        (
            MINIMAL.replace("data: digits", "data: {source: synthetic, shape: [1, 2]}"),
            [":2: data.shape (value 3) is missing"],
        ),
        (
            MINIMAL.replace("data: digits", "data: {source: synthetic, shape: [1, 2, 3, 4]}"),
            [":2: data.shape: must be a list of 3 values, found 4"],
        ),
        (MINIMAL + "epochs_: 1\nlr: 0.1\n", [":5: unknown key 'epochs_'", "did you mean 'epochs'?"]),
        (MINIMAL + "optimizer: {learning_rate: 1}\n", ["did you mean 'optimizer.lr'?"]),
        (MINIMAL + "learning_rate: 1\n", ["did you mean 'optimizer.lr'?"]),
        (MINIMAL + "lr: 1\n", ["did you mean 'optimizer.lr'?"]),
        (MINIMAL + "batch_size: 1\n", ["did you mean 'batch.per_rank'?"]),
        (MINIMAL + "num_workers: 1\n", ["did you mean 'data.workers'?"]),
        (MINIMAL + "image_size: 1\n", ["did you mean 'data.image_size'?"]),
        (
            MINIMAL.replace("data: digits", "data: {source: digits, sampling: {name: balanced}}"),
            [
                "data.sampling is not used by source digits; legal with folder, tar, package.module:factory",
            ],
        ),
        (
            MINIMAL.replace("data: digits", "data: {source: folder, path: x, classes: 3}"),
            ["data.classes is not used by source folder; legal with tar, synthetic"],
        ),
        (MINIMAL + "steps: 3\n", [":4: exactly one of epochs and steps"]),
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
        ("epochs=", "no value is given for epochs; write --set epochs=VALUE, or null to leave the key out"),
        ("epochs=null", "exactly one of epochs and steps must be given, found neither"),
        ("optimizer.momentum=0.9", "momentum is not used by adam"),
        ("optimizer.learning_rate=3", "did you mean 'optimizer.lr'?"),
        ("output.dir=''", "output.dir: must be a path, found ''"),
        ("optimizer.lr", "not of the form key=value"),
        ("=3", "not of the form key=value"),
        ("optimizer..lr=3", "not of the form key=value"),
        ("optimzer.lr=3", "did you mean 'optimizer'?"),
        ("epochs.x=3", "holds a value, not a section"),
        ("epochs=[1", "--set epochs=[1: epochs:"),
        ("optimizer.lr=-1", "--set optimizer.lr=-1: optimizer.lr:"),
        ("data.wrkers=2", "did you mean 'workers'?"),
        ("model.args.a=&x [*x]", "model.args.a: must not be nested deeper"),
        ("model.args.a=.inf", "model.args.a: must be a finite number"),
        ("epochs=3.0", "epochs: must be a whole number, found 3.0"),
        ("epochs=1e6", "epochs: must be a whole number, written out in digits, found '1e6'"),
        ("batch.global=true", "batch.global: must be a whole number, found true"),
        ("epochs=2024-13-01", "epochs: must be a whole number, found '2024-13-01'"),
        ("a=" + "[" * 2000, "nested too deeply"),
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


FACTORY = "model: 'torchvision:vgg11'\ndata: 'm.n:C.f'\nbatch: {per_rank: 1}\nsteps: 5\n"


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL,
        MINIMAL.replace("data: digits", "data: synthetic"),
        FACTORY,
        MINIMAL.replace("data: digits", "data: {source: folder, path: photos, channels: 1}"),
        MINIMAL.replace("data: digits", "data: {source: synthetic, shape: [1, 2, 3]}"),
        MINIMAL + "tuning: {fusion_mb: 0.5, hierarchical: yes, timeline: t}\nschedule: {name: cosine}\n",
        MINIMAL + "metrics: [f1, top10, 'm.n:C.f']\nschedule: {scaling: sqrt, base_batch: 8}\n",
    ],
)
def test_the_schema_takes_what_is_legal(written, text):
    load_job(written(text))
    jsonschema.validate(yaml.safe_load(text), Job.model_json_schema(by_alias=True))


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL.replace("data: digits", "data: folder"),
        MINIMAL.replace("data: digits", "data: digitz"),
        MINIMAL.replace("model: digits_cnn", "model: ''"),
        MINIMAL.replace("epochs: 2", "epochs: '2'"),
        MINIMAL + "tuning: {autotune: 1}\n",
        MINIMAL + "modle: x\n",
        MINIMAL + "metrics: [top01]\n",
    ],
)
def test_the_schema_refuses_what_is_refused(written, text):
    refusal(written(text))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), Job.model_json_schema(by_alias=True))


def test_the_schema_names_the_keys_as_they_are_written():
    schema = Job.model_json_schema(by_alias=True)
    assert "global" in schema["$defs"]["BatchConfig"]["properties"]
    assert yaml.safe_load(load_job(None).as_yaml()).keys() <= schema["properties"].keys()


def test_what_an_override_makes_missing_names_the_override():
    with pytest.raises(InputError) as caught:
        load_job(None, ["data.source=folder"])
    assert str(caught.value).startswith("--set data.source=folder: key 'data.path' is missing; legal: ")
