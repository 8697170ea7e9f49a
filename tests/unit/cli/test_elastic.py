"""What may be asked of --elastic; each wrong wish is one line and nothing is started."""

import json

import pytest

from hvdtrain.backends import choose
from hvdtrain.backends.choose import horovod_has_gloo, horovod_is_built
from hvdtrain.cli.elastic import Bounds, find_bounds, on_this_machine
from hvdtrain.errors import InputError

pytestmark = pytest.mark.skipif(not horovod_is_built(), reason="Horovod is not built here")


def bounds(num_ranks=None, slots=None, **given):
    options = dict.fromkeys(("min_ranks", "max_ranks", "commit_steps", "launcher"))
    return find_bounds({**options, "max_restarts": 0, **given}, num_ranks, slots)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"slots": 8}, Bounds(8, 1, None, 10)),
        ({"slots": 8, "num_ranks": 4}, Bounds(4, 1, 4, 10)),
        ({"slots": 8, "max_ranks": 4}, Bounds(4, 1, 4, 10)),
        ({"slots": 2, "max_ranks": 4, "min_ranks": 2}, Bounds(2, 2, 4, 10)),
        ({"slots": 8, "num_ranks": 2, "max_ranks": 6, "commit_steps": 3}, Bounds(2, 1, 6, 3)),
        ({"num_ranks": 2}, Bounds(2, 1, 2, 10)),
        ({"max_ranks": 3}, Bounds(3, 1, 3, 10)),
        ({}, Bounds(1, 1, None, 10)),
    ],
)
def test_how_many_ranks(given, expected):
    assert bounds(**given) == expected


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"min_ranks": 3, "max_ranks": 2}, "--min-ranks: 3 with --max-ranks 2: expected 1 to 2"),
        ({"min_ranks": 3, "num_ranks": 2}, "--min-ranks: 3 with -np 2: expected 1 to 2"),
        ({"min_ranks": 3, "slots": 2}, "--min-ranks: 3 of 2 slots: expected 1 to 2"),
        ({"num_ranks": 4, "max_ranks": 2}, "-np 4 with --max-ranks 2"),
        ({"max_restarts": 2}, "--elastic and --max-restarts cannot be combined"),
        ({"launcher": "mpirun"}, "--launcher mpirun with --elastic"),
    ],
)
def test_numbers_that_contradict_each_other(given, told):
    with pytest.raises(InputError) as error:
        bounds(**given)
    assert told.split(": expected")[0] in str(error.value)


def test_horovod_without_gloo(tmp_path, monkeypatch):
    assert horovod_has_gloo()
    library = tmp_path / "mpi_lib_v2.so"
    library.write_bytes(b"\0HOROVOD_CONTROLLER\0")
    monkeypatch.setattr(choose, "_libraries", lambda: [library])
    assert not horovod_has_gloo()
    with pytest.raises(InputError, match="built without Gloo"):
        bounds(num_ranks=2)
    monkeypatch.setattr(choose, "_libraries", list)
    with pytest.raises(InputError, match="not built"):
        bounds(num_ranks=2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--elastic", "-np", "2", "--slots", "2", "--set", "backend=ddp"), "backend: ddp cannot go on"),
        (("--elastic", "-np", "3", "--slots", "2"), "-np 3: more ranks than this machine's 2 slots"),
        (("--elastic", "--max-ranks", "3", "--slots", "2"), "more ranks than this machine's 2 slots"),
        (("--elastic", "-np", "2", "--slots", "2", "--min-ranks", "3"), "--min-ranks: 3 with -np 2"),
        # 64 samples are not for 3 ranks, which there may be between 2 and 4.
        (("--elastic", "-np", "4", "--slots", "4", "--set", "batch.global=64"), "does not divide by 3 ranks"),
        (("--max-ranks", "2"), "--max-ranks: given without --elastic"),
        (("--commit-steps", "2"), "--commit-steps: given without --elastic"),
    ],
)
def test_train_refuses(hvdtrain, tmp_path, words, told):
    ended = hvdtrain("train", *words)
    assert ended.code == 2, ended.err
    assert told in ended.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--elastic", "-H", "localhost:2", "-np", "3"), "3"),
        (("--elastic", "-H", "localhost:2", "--min-ranks", "3"), "--min-ranks: 3 of 2 slots"),
        (("--elastic", "-H", "localhost:2", "--include", "localhost:0"), "--include with --elastic"),
        (("--elastic", "-np", "2", "--bind", "core"), "--bind with --elastic"),
        (("--max-ranks", "2"), "--max-ranks: given without --elastic"),
    ],
)
def test_run_refuses(hvdtrain, words, told):
    ended = hvdtrain("run", *words, "--no-gpus", "--", "true")
    assert ended.code == 2, ended.err
    assert told in ended.error


def test_a_rank_cannot_ask_for_it(hvdtrain):
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    ranks |= {"GROUP_WORLD_SIZE": "1", "HVDTRAIN_LOCAL_LAUNCH": "1"}
    ended = hvdtrain("train", "--elastic", env=ranks)
    assert ended.code == 2
    assert "hvdtrain run --elastic" in ended.error


def test_a_plan_is_shown_and_nothing_made(hvdtrain, tmp_path):
    words = ("train", "--elastic", "-np", "2", "--slots", "2", "--commit-steps", "5", "--dry-run", "--json")
    document = hvdtrain(*words).document
    command = document["command"]
    assert command[command.index("--max-np") + 1] == "2"
    assert command[-1] == "hvdtrain.train.elastic"
    assert (document["launcher"], document["size"]) == ("elastic", 2)
    assert document["env"]["HVDTRAIN_COMMIT_STEPS"] == "5"
    hosts = tmp_path / "my hosts"
    hosts.write_text("localhost:2\n")
    ended = hvdtrain(
        "run", "--elastic", "--hostfile", hosts, "--no-gpus", "--dry-run", "--json", "--", "true"
    )
    command = json.loads(ended.out)["command"]
    assert command[command.index("--host-discovery-script") + 1].endswith(f"discover.py hostfile '{hosts}'")
    assert "--max-np" not in command
    assert [path.name for path in tmp_path.iterdir()] == ["my hosts"]


@pytest.mark.parametrize(("devices", "gpus"), [(None, (0, 1, 2, 3)), ((5, 4, 3, 2, 1), (5, 4, 3, 2))])
def test_ranks_that_come_later_have_a_gpu_too(devices, gpus):
    assert on_this_machine(Bounds(2, 1, 4, 10), "python", 4, devices).gpus == gpus
