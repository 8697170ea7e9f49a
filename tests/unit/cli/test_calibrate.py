"""``hvdtrain calibrate`` as users call it: proposals, scripts, results, and one line for what is wrong."""

import json
import os
import shlex

import pytest

from hvdtrain.cli import main as cli
from tests.unit.scaling.profiles import profile_document, rank_times

WHERE = ("--network", "25GbE", "--gpus-per-node", "2", "--max-gpus", "8")
JOB = """
name: digits
model: digits_cnn
data: {source: digits}
batch: {BATCH}
epochs: 1
optimizer: {name: sgd, lr: 0.1}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The tests' folder, and no site of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def profile(tmp_path):
    def written(name="profile.json", **changed):
        changed = {"ranks": [rank_times(std_s=0.01)], "num_gradients": 4, **changed}
        (tmp_path / name).write_text(json.dumps(profile_document(**changed)))
        return name

    return written


def invoke(*words):
    return cli.main(["calibrate", *map(str, words)])


def refused(capsys, *words):
    """The line that a wrong call ends with."""
    assert invoke(*words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err.removeprefix("hvdtrain: error: ").strip()


def last_command(script):
    """The program behind the last line of a script."""
    return shlex.split(script.replace("\\\n", " ").strip().splitlines()[-1])


def test_a_proposal_as_tables(profile, capsys):
    assert invoke(profile(), *WHERE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "GPU-minutes narrow" in lines[0]
    assert lines[1].split()[:3] == ["run", "nodes", "GPUs"]
    assert any(line.startswith("- the band at 8 GPUs comes from: link between nodes") for line in lines)
    assert any(line.startswith("- what other runs would take off the band") for line in lines)
    assert "- --out DIR writes their batch scripts" in lines
    assert not os.path.exists("calibration.json")


def test_a_proposal_as_json(profile, capsys):
    assert invoke(profile(), *WHERE, "--runs", "2", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, "calibration")
    assert 1 <= len(document["runs"]) <= 2
    assert document["gpu_minutes"] == pytest.approx(sum(run["gpu_minutes"] for run in document["runs"]))
    assert document["expected_width"] < document["width"]
    assert sum(one["share"] for one in document["unknowns"]) == pytest.approx(1)
    for row in document["predictions"]:
        assert row["efficiency_low"] <= row["expected_low"] <= row["efficiency"]
        assert row["efficiency"] <= row["expected_high"] <= row["efficiency_high"]
    for run in document["weighed"]:
        assert run["gain_per_gpu_hour"] == pytest.approx(run["gain"] / run["gpu_minutes"] * 60)


def test_the_former_band_is_that_of_advise(profile, capsys):
    assert invoke(profile(), *WHERE, "--json") == 0
    proposed = json.loads(capsys.readouterr().out)["predictions"]
    assert cli.main(["advise", "profile.json", *WHERE, "--json"]) == 0
    advised = json.loads(capsys.readouterr().out)["predictions"][1:]
    for one, other in zip(proposed, advised, strict=True):
        for name in ("gpus", "efficiency", "efficiency_low", "efficiency_high"):
            assert one[name] == pytest.approx(other[name])


def test_a_prediction_that_no_run_narrows_is_said_to_be(profile, capsys):
    words = (profile(ranks=[rank_times()]), "--network", "NVLink3", "--max-gpus", "8", "--out", "runs")
    assert invoke(*words) == 0
    out = capsys.readouterr().out
    assert out.startswith("No small run narrows this prediction by half a point: its bands are ")
    assert "What is left of them no run on up to 2 GPUs tells." in out
    assert not os.path.exists("runs")
    assert invoke("profile.json", "--max-gpus", "1") == 0
    assert capsys.readouterr().out == "One GPU is what was profiled: there is nothing to predict.\n"


def test_scripts_of_a_job_with_a_global_batch(profile, tmp_path, capsys):
    (tmp_path / "job.yaml").write_text(JOB.replace("BATCH", "global: 64"))
    words = ("--job", "job.yaml", "--out", "runs", "--partition", "gpu", "--sbatch", "qos=low", "--json")
    assert invoke(profile(), *WHERE, *words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["folder"] == "runs"
    for run in document["runs"]:
        script = (tmp_path / "runs" / f"{run['name']}.sh").read_text()
        for line in (
            f"nodes={run['nodes']}",
            f"ntasks-per-node={run['ranks_per_node']}",
            f"gpus-per-node={run['ranks_per_node']}",
            "partition=gpu",
            "qos=low",
            "cpus-per-task=4",  # of the eight cores, on a node of two GPUs
            "time=10",
            f"output={tmp_path}/runs/{run['name']}.log",
        ):
            assert f"#SBATCH --{line}\n" in script
        words = last_command(script)
        assert words[words.index("--") + 1 :] == run["program"]
        assert f"{tmp_path}/runs/{run['name']}.json" in " ".join(run["program"])
        if run["kind"] == "profile":
            # each rank keeps its 64 samples
            size = run["nodes"] * run["ranks_per_node"]
            assert f"--set=batch.global={64 * size}" in run["program"]
            assert str(tmp_path / "job.yaml") in run["program"]
    plan = json.loads((tmp_path / "runs" / "calibration.json").read_text())
    assert plan["profile"]["job"] == "digits"
    assert [run["name"] for run in plan["runs"]] == [run["name"] for run in document["runs"]]


def test_scripts_of_a_job_with_a_batch_of_each_rank(profile, tmp_path, capsys):
    (tmp_path / "job.yaml").write_text(JOB.replace("BATCH", "per_rank: 64"))
    assert invoke(profile(device="cpu"), *WHERE, "--job", "job.yaml", "--out", "runs", "--json") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    for run in runs:
        script = (tmp_path / "runs" / f"{run['name']}.sh").read_text()
        assert "gpus-per-node" not in script
        assert " run --no-gpus " in script
        assert run["program"][-1] == "--no-gpus"
        assert not any(word.startswith("--set") for word in run["program"])
    (tmp_path / "other.yaml").write_text(JOB.replace("BATCH", "per_rank: 32"))
    told = refused(capsys, "profile.json", *WHERE, "--job", "other.yaml", "--out", "more")
    assert told.startswith("other.yaml: a rank takes 32 samples a step, 64 in the profile")


def test_scripts_of_a_script_of_the_users(profile, tmp_path, capsys):
    words = ("--runs", "1", "--out", "runs", "--json", "--", "python", "my script.py", "--lr", "0.1")
    assert invoke(profile(source="script", job="script"), *WHERE, *words) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    (run,) = (one for one in runs if one["kind"] == "profile")
    script = (tmp_path / "runs" / f"{run['name']}.sh").read_text()
    words = last_command(script)
    program = words[words.index("--") + 1 :]
    assert program[0] == "env"
    assert f"HVDTRAIN_PROFILE={tmp_path}/runs/{run['name']}.json" in program
    assert program[-4:] == ["python", "my script.py", "--lr", "0.1"]


def test_results_are_read_and_advice_follows(profile, tmp_path, capsys):
    assert invoke(profile(), *WHERE, "--runs", "1", "--out", "runs", "--json") == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["kind"] == "profile"
    count, share = run["nodes"], run["ranks_per_node"]
    ranks = [
        rank_times(i, f"n{i // share}", exposed_s=0.05, wait_s=0.01, std_s=0.01) for i in range(count * share)
    ]
    profile(f"runs/{run['name']}.json", ranks=ranks)
    assert invoke("--read", "runs", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "calibration-results"
    assert document["narrowed"] is True
    assert document["runs"][0]["state"] == "measured"
    assert invoke("--read", "runs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        f"Outside the band that was predicted of them: {run['name']}; the prediction is narrower: "
    )
    assert f"{run['name']}: measured" in lines
    assert lines[-1] == "- for advice: hvdtrain advise runs/calibrated.json"
    assert cli.main(["advise", "runs/calibrated.json", "--max-gpus", "8", "--json"]) == 0
    advised = json.loads(capsys.readouterr().out)["predictions"]
    assert [row["efficiency"] for row in advised] == pytest.approx(
        [row["efficiency"] for row in document["predictions"]]
    )
    told = refused(capsys, "runs/calibrated.json", "--network", "100GbE")
    assert told.startswith("--network: the profile is calibrated")
    assert invoke("runs/calibrated.json", "--max-gpus", "8", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["width"] == pytest.approx(document["width"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "neither a profile nor --read given"),
        (("profile.json", "--read", "runs"), "a profile and --read, both given"),
        (("--read", "runs"), "runs: there is no such folder"),
        (("--read", "."), ".: holds no calibration.json"),
        (("--read", "runs", "--network", "25GbE"), "--network: goes with PROFILE only"),
        (("--read", "runs", "--", "python"), "a program goes with PROFILE only"),
        (("missing.json",), "missing.json: cannot be read"),
        (("profile.json", "--network", "nonsense"), "--network: unknown network 'nonsense'"),
        (("profile.json", "--set", "epochs=1"), "--set: goes with --out only"),
        (("profile.json", "--", "python", "x.py"), "a program goes with --out only"),
        (("profile.json", "--out", "."), "--out: . is not empty"),
        (("profile.json", "--out", "profile.json"), "--out: profile.json is no folder"),
        (("profile.json", "--out", "runs", "--job", "job.yaml", "--", "x"), "both a job file and a program"),
        (("profile.json", "--out", "runs", "--"), "no program behind --"),
        (("profile.json", "--out", "runs", "--job", "missing.yaml"), "missing.yaml: no such job file"),
        (("profile.json", "--out", "runs", "--time", "2h"), "--time: '2h'"),
        (("profile.json", "--out", "runs", "--launcher", "rsh"), "--launcher: no launcher 'rsh'"),
        (("faces.json", "--out", "runs"), "--out: the profile is of 'faces', and its job file is not told"),
        (
            ("faces.json", "--out", "runs", "--job", "job.yaml"),
            "job.yaml: is the job 'digits', the profile is",
        ),
        (("profile.json", "--runs", "4"), "Invalid value for '--runs'"),
        (("profile.json", "--max-gpus", "0"), "Invalid value for '--max-gpus'"),
    ],
)
def test_what_is_wrong_is_one_line(profile, tmp_path, capsys, words, told):
    profile()
    profile("faces.json", job="faces")
    (tmp_path / "job.yaml").write_text(JOB.replace("BATCH", "global: 64"))
    assert refused(capsys, *words).startswith(told)
    assert not (tmp_path / "runs").exists()


def test_a_network_file_is_found_from_anywhere(profile, tmp_path, capsys, monkeypatch):
    fit = {"level": "inside", "library": "mpi", "ranks": 2, "alpha_s": 1e-5, "beta_s_per_byte": 1e-10}
    document = {"schema": 1, "kind": "allreduce", "fits": [{**fit, "residual": 0.0}]}
    (tmp_path / "network.json").write_text(json.dumps(document))
    words = ("--network", "network.json+25GbE", "--gpus-per-node", "2", "--max-gpus", "8", "--json")
    assert invoke(profile(), *words) == 0
    assert json.loads(capsys.readouterr().out)["network"] == f"{tmp_path}/network.json+25GbE"
