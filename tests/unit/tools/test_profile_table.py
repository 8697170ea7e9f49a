"""The profile as a table."""

from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.profile import parse_profile
from hvdtrain.tools.profile.table import table_lines
from tests.unit.scaling.profiles import profile_document, rank_times


def lines(**changed):
    ranks = [rank_times(wait_s=0.05), rank_times(rank=1, host="b", load_s=0.05)]
    return table_lines(parse_profile(Fields({**profile_document(ranks), **changed}, "profile.json")))


def test_each_rank_and_the_shares():
    told = lines()
    (first,) = [line for line in told if line.startswith("   0  a ")]
    assert first.split()[2:] == [
        "0.000",
        "30.000",
        "60.000",
        "0.000",
        "10.000",
        "50.000",
        "0.000",
        "150.000",
    ]
    (share,) = [line for line in told if line.startswith("share")]
    assert share.split()[1:] == ["16.7%", "20.0%", "40.0%", "0.0%", "6.7%", "16.7%", "0.0%", "100.0%"]


def test_who_is_slowest_and_what_moved():
    told = "\n".join(lines())
    assert "slowest    rank 1 on b: its own work takes 50 % longer than the median of the others, " in told
    assert "most of it in load" in told
    assert "gradients  100 MB reduced in a step, 40 tensors" in told


def test_what_is_measured_only_sometimes():
    gpu = {"utilisation": 0.5, "power_w": 300.0, "energy_j_per_step": 30.0}
    told = "\n".join(lines(gpu=gpu, noise_scale={"simple": 1234.0, "num_steps": 40}))
    assert "GPU        50 % used, 300 W, 30 J a step on each" in told
    assert "noise      scale of the gradient about 1.23e+03 samples, from 40 steps" in told
