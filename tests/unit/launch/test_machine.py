"""The facts of this machine."""

import os

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.gpus import count_gpus
from hvdtrain.launch.machine import local_plan


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("0,1", 2),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("GPU-1,GPU-2,GPU-3", 3),
        ("0,1,2,3,4,5", 4),
    ],
)
def test_gpus_are_those_that_the_driver_lists_and_the_environment_leaves(tmp_path, visible, count):
    for name in "abcd":
        (tmp_path / name).mkdir()
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_gpus(env, tmp_path) == count
    assert count_gpus(env, tmp_path / "none") == 0


def test_more_ranks_than_slots_are_refused_with_both_numbers():
    with pytest.raises(InputError, match=r"-np 9: more ranks than this machine's 4 slots \(--slots 4\)"):
        local_plan(9, 4, os.environ)
    with pytest.raises(InputError, match="--slots 5000"):
        local_plan(5000, None, os.environ)


def test_slots_let_ranks_share_cores():
    plan = local_plan(5, 8, os.environ)
    assert (plan.size, plan.max_local_size, plan.is_one_host) == (5, 5, True)
