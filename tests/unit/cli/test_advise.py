"""``hvdtrain advise`` as users call it: documents, tables, exit codes, and one line for what is wrong."""

import json
from pathlib import Path

import pytest

from hvdtrain.cli import main as cli
from tests.unit.scaling.profiles import profile_document, rank_times

MEASURED = ("--measured", "1:872,8:6679", "--params", "25.6M", "--gpus-per-node", "8", "--network", "25GbE")


@pytest.fixture
def profile(tmp_path):
    def written(**changed):
        path = tmp_path / "profile.json"
        path.write_text(json.dumps(profile_document(**changed)))
        return str(path)

    return written


def invoke(*words):
    return cli.main(["advise", *words])


def test_measured_throughputs_as_json(capsys):
    assert invoke(*MEASURED, "--predict", "16,32,64", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["gpus"] for one in document["predictions"]] == [16, 32, 64]
    assert document["worth_it"] is True
    assert set(document["predictions"][0]) == {
        "gpus",
        "throughput",
        "efficiency",
        "efficiency_low",
        "efficiency_high",
        "step_time_s",
        "cost",
    }


def test_measured_throughputs_as_tables(capsys):
    assert invoke(*MEASURED, "--price", "2", "--batch-per-gpu", "256", "--accumulate", "2") == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("Use 64 GPUs: ")
    assert lines[1].split() == ["GPUs", "step", "samples/s", "efficiency", "band", "cost"]
    assert lines[2].split() == ["1", "872", "100", "%", "measured", "0.6371"]
    # twice, four and eight times the largest row
    assert [line.split()[0] for line in lines[4:7]] == ["16", "32", "*64"]
    assert "- between nodes: 25GbE (TCP): 1.72 GB/s" in out


def test_a_profile_as_tables(profile, capsys):
    assert (
        invoke(
            profile(),
            "--network",
            "NVLink3+25GbE",
            "--max-gpus",
            "16",
            "--gpus-per-node",
            "8",
            "--price",
            "2",
        )
        == 0
    )
    out = capsys.readouterr().out
    assert out.startswith("Use ")
    for word in ("time to finish", "what if", "imbalance", "stragglers", "left of GPUs that never wait"):
        assert word in out


def test_a_profile_as_json(profile, capsys):
    assert invoke(profile(), "--network", "1GbE", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["source"], document["bottleneck"]) == (1, "profile", "bandwidth")
    assert [one["gpus"] for one in document["predictions"]] == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--min-efficiency", "0.9", "--network", "1GbE"), 3),
        (("--min-efficiency", "0.01", "--network", "1GbE"), 0),
        (("--deadline", "1e-6"), 3),
        (("--deadline", "100"), 0),
        (("--budget", "0.001", "--price", "3"), 3),
        (("--budget", "1000", "--price", "3"), 0),
    ],
)
def test_gates_end_with_3(profile, capsys, words, code):
    assert invoke(profile(), *words) == code
    assert ("REFUSED: " in capsys.readouterr().out) is (code == 3)


def test_a_gate_on_measured_throughputs(capsys):
    assert invoke(*MEASURED, "--min-efficiency", "0.99", "--json") == 3
    assert json.loads(capsys.readouterr().out)["gates"][0]["holds"] is False


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "neither a profile nor --measured given"),
        (
            ("--price", "-1"),
            "Invalid value for '--price': must be a number of at least 0 and at most 1e+15, found '-1'",
        ),
        (("--price", "nan"), "must be a number of at least 0 and at most 1e+15, found 'nan'"),
        (("--energy-price", "-0.1"), "Invalid value for '--energy-price'"),
        (("--budget", "0"), "Invalid value for '--budget': must be a number above 0"),
        (("--min-efficiency", "80"), "at most 1, found '80'; it is a fraction: 0.8 for 80 %"),
        (("--min-efficiency", "80%"), "at most 1, found '80%'; it is a fraction: 0.8 for 80 %"),
        (("--min-efficiency", "many"), "must be a number above 0 and at most 1, found 'many'"),
        (("--max-gpus", "0"), "Invalid value for '--max-gpus'"),
        (("--measured", "1:2"), "give the model's number of parameters, such as --params 25.6M"),
        (
            ("--measured", "1:2", "--params", "2M", "--budget", "3"),
            "--budget: throughputs do not tell how much",
        ),
        (("--measured", "1:2", "--params", "2M", "--predict", "x"), "--predict: no number of GPUs: 'x'"),
        ((*MEASURED[:-1], "25GBX"), "--network: unknown network '25GBX'; the nearest name is 25GbE"),
        (("none.json",), "none.json: cannot be read: No such file"),
        (("none.json", "--measured", "1:2"), "a profile and --measured, both given"),
        (("none.json", "--predict", "4"), "--predict: goes with --measured only"),
        (("",), "the path is empty"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, words, told):
    assert invoke(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert told in captured.err


def test_profiles_that_cannot_be_used(profile, tmp_path, capsys):
    assert invoke(profile(steps=1)) == 2
    assert "the profile holds one step" in capsys.readouterr().err
    (tmp_path / "network.json").write_text('{"schema": 1, "kind": "allreduce", "fits": []}')
    assert invoke(profile(), "--network", str(tmp_path / "network.json")) == 2
    assert "the network file has no fit" in capsys.readouterr().err
    assert invoke(profile(total_steps=None), "--deadline", "3", "--json") == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_the_verdict_of_a_job_that_waits_for_data(profile, capsys):
    loader = {
        "num_workers": 1,
        "capacity_samples_per_s": 185.0,
        "cpu_s_per_sample": 0.006,
        "cores_per_rank": 64.0,
    }
    assert invoke(profile(ranks=[rank_times(load_s=0.245)], loader=loader)) == 0
    told = "Do not scale out: 71 % of the step waits for data; give the loader 5 workers first."
    assert capsys.readouterr().out.splitlines()[0] == told


def test_a_page_of_what_was_measured(tmp_path, capsys):
    assert invoke(*MEASURED, "--html", str(tmp_path / "advice.html")) == 0
    assert f"hvdtrain: note: written to {tmp_path}/advice.html\n" in capsys.readouterr().err
    page = (tmp_path / "advice.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "<svg" in page


def test_a_page_never_takes_the_place_of_the_profile(profile, capsys):
    path = profile()
    assert invoke(path, "--html", path) == 2
    assert "is the input itself" in capsys.readouterr().err
    assert json.loads(Path(path).read_text())["schema"] == 1


MANY = "9" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ("--max-gpus", MANY),
        ("--gpus-per-node", MANY),
        ("--target-steps", MANY),
        ("--target-steps", "9" * 400),
        ("--price", "1e308"),
        ("--network", ""),
        ("--deadline", "1e16"),
    ],
)
def test_values_that_say_nothing(profile, capsys, words):
    assert invoke(profile(), *words) == 2
    assert f"'{words[0]}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--measured", f"{MANY}:100"),
        ("--measured", "1:1e308,8:1e308"),
        ("--measured", "1:1e-300"),
        ("--predict", MANY),
        ("--samples", "1e99b"),
        ("--params", MANY),
    ],
)
def test_measured_numbers_without_an_end(capsys, option, value):
    given = {"--measured": "1:872,8:6679", "--params": "25.6M", option: value}
    assert invoke(*(word for pair in given.items() for word in pair)) == 2
    assert capsys.readouterr().err.startswith(f"hvdtrain: error: {option}: ")


@pytest.mark.parametrize("value", ["1e308", "9" * 400, MANY])
def test_a_profile_with_numbers_without_an_end(tmp_path, capsys, value):
    text = json.dumps(profile_document(), default=str)
    (tmp_path / "profile.json").write_text(
        text.replace('"samples_per_s": ', f'"samples_per_s": {value}, "x": ')
    )
    assert invoke(str(tmp_path / "profile.json")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line


def test_ranks_that_only_wait_tell_nothing(profile, capsys):
    idle = dict.fromkeys(("forward_s", "backward_s", "optimizer_s", "other_s"), 0.0)
    assert invoke(profile(ranks=[rank_times(**idle, wait_s=0.1)])) == 2
    assert "the rank does nothing" in capsys.readouterr().err


def test_the_verdict_compares_what_the_table_shows(capsys):
    """No fit follows these two rows; the verdict is of the measured one."""
    asked = ("--measured", "1:100,8:9000", "--params", "25.6M", "--gpus-per-node", "8", "--json")
    assert invoke(*asked) == 0
    document = json.loads(capsys.readouterr().out)
    last = document["predictions"][-1]
    assert f"{last['throughput'] / 9000:.3g} times the throughput of 8 GPUs" in document["verdict"]
