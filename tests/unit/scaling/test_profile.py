"""profile.json: what is written is read again, and what is wrong is named with file and key."""

import copy
import json

import pytest

from hvdtrain.errors import InputError
from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.profile import parse_profile, read_profile
from tests.unit.scaling.profiles import profile_document, rank_times


@pytest.fixture
def write(tmp_path):
    def written(document):
        path = tmp_path / "profile.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return written


FULL = profile_document(
    ranks=[
        rank_times(rank=i, host="ab"[i], load_s=0.01, wait_s=0.002, exposed_s=0.003, std_s=0.001)
        for i in range(2)
    ],
    gpu={"utilisation": 0.9, "power_w": 300.0, "energy_j_per_step": 30.0},
    noise_scale={"simple": 1000.0, "num_steps": 40},
    fused=[{"bytes": 1000, "num_tensors": 3}],
    epochs=2.5,
    samples_per_epoch=50_000,
)


def test_what_is_written_is_read_again(write):
    profile = read_profile(write(FULL))
    assert profile.document() == FULL
    assert profile.ranks[1].host == "b"
    assert profile.ranks[0].busy_s == pytest.approx(0.11)
    assert read_profile(write(profile.document())) == profile


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file is empty; write one with hvdtrain profile"),
        ("  \n", "the file is empty"),
        ("[1]", "is no profile: it holds no JSON object"),
        ("{", "is no profile: it is no JSON"),
        ('{"schema": 2}', "schema 2 of a profile; legal: schema 1"),
        ("{}", "is no profile: it has no key schema; write one with hvdtrain profile"),
        ('{"schema": 1}', "is no profile of hvdtrain profile; write one with"),
        ('{"schema": 1, "ranks": []}', "is no profile of hvdtrain profile"),
        ('{"schema": 1, "kind": "advice", "ranks": [], "steps": 5}', "is no profile of hvdtrain profile"),
        ('{"schema": 1, "job": "x", "steps": 5, "runs": []}', "is no profile of hvdtrain profile"),
    ],
)
def test_no_profile(write, text, told):
    path = write(text)
    with pytest.raises(InputError, match=told) as caught:
        read_profile(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="it is no text"):
        read_profile(tmp_path / "binary")


def change(path, value):
    document = copy.deepcopy(FULL)
    at = document
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (["steps"], 1, "steps is 1: the profile holds one step"),
        (["steps"], 0, "steps is 0: the profile holds no step"),
        (["steps"], 2.5, "steps is 2.5; legal: a whole number"),
        (["size"], 3, "ranks has 2 entries for size 3"),
        (["hosts"], [{"name": "a", "ranks": 3}], "hosts hold 3 ranks, size is 2"),
        (["backend"], None, "backend is missing"),
        (["device"], 5, "device must be a string, found 5"),
        (["global_batch"], True, "global_batch is True"),
        (["step_s", "mean"], -1, "step_s.mean is -1"),
        (["step_s"], 1, "step_s must be an object"),
        (["ranks", 1, "load_s"], 9.0, r"ranks\[1\].step_s is .* but its parts sum to"),
        (["ranks", 0], 1, r"ranks\[0\] must be an object"),
        (["gradients", "ready", 0, "ready_s"], 9.0, "gradients.ready is not in the order"),
        (["gpu", "utilisation"], 1.5, "gpu.utilisation is 1.5; legal: from 0 to 1"),
        (["noise_scale", "num_steps"], None, "noise_scale.num_steps is missing"),
        (["kind"], "allreduce", "kind is allreduce: this is a network file; give it as --network"),
    ],
)
def test_a_wrong_value_is_named(path, value, told):
    with pytest.raises(InputError, match=told) as caught:
        parse_profile(Fields(change(path, value), "p.json"))
    assert str(caught.value).startswith("p.json: ")


def test_no_finite_number_is_refused(write):
    text = json.dumps(FULL).replace('"samples_per_s": ', '"samples_per_s": NaN, "was": ')
    with pytest.raises(InputError, match="samples_per_s is nan"):
        read_profile(write(text))
