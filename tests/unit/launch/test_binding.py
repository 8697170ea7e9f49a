"""Cores of ranks, worked out by hand, and the machine's own lists."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.binding import choose_cores, cores_near, numa_nodes, parse_cpu_list
from hvdtrain.launch.gpus import Gpu, visible_gpus

EIGHT = range(8)
NODES = ([0, 1, 2, 3], [4, 5, 6, 7])


@pytest.mark.parametrize(
    ("mode", "local_rank", "local_size", "options", "cores"),
    [
        ("core", 1, 2, {}, [4, 5, 6, 7]),
        ("core", 2, 3, {}, [4, 5]),
        ("core", 1, 3, {"per_rank": 1}, [1]),
        ("numa", 0, 4, {"domains": NODES}, [0, 1, 2, 3]),
        ("numa", 1, 4, {"domains": NODES}, [0, 1, 2, 3]),
        ("numa", 2, 4, {"domains": NODES}, [4, 5, 6, 7]),
        ("numa", 0, 1, {"domains": []}, list(EIGHT)),
        ("gpu", 3, 4, {"domains": [[6, 7, 8, 9]]}, [6, 7]),
        ("gpu", 3, 4, {"domains": []}, list(EIGHT)),
    ],
)
def test_cores(mode, local_rank, local_size, options, cores):
    assert choose_cores(mode, local_rank, local_size, EIGHT, **options) == cores


@pytest.mark.parametrize("per_rank", [None, 3])
def test_too_few_cores(per_rank):
    with pytest.raises(InputError, match="on a host that gives 8 core"):
        choose_cores("core", 0, 9 if per_rank is None else 3, EIGHT, per_rank=per_rank)


def test_lists_of_the_kernel(tmp_path):
    assert parse_cpu_list("0-2,8,10-11\n") == [0, 1, 2, 8, 10, 11]
    assert parse_cpu_list("\n") == []
    for name, text in {"node0": "0-1", "node10": "4", "node2": "2-3", "node3": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    assert numa_nodes(tmp_path) == [[0, 1], [2, 3], [4]]
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "0000:1b:00.0" / "local_cpulist").write_text("4-5\n")
    assert cores_near("0000:1B:00.0", tmp_path) == [4, 5]
    assert cores_near("0000:ff:00.0", tmp_path) == cores_near("", tmp_path) == []
    assert numa_nodes()[0]


def test_gpus_of_the_driver(tmp_path):
    for bus, uuid in {"0000:1b:00.0": "GPU-bb", "0000:1a:00.0": "GPU-aa", "0000:1c:00.0": "GPU-????"}.items():
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t X\nGPU UUID: \t {uuid}\n")
    a, b, c = visible_gpus({}, tmp_path)
    assert (a, b, c) == (
        Gpu("GPU-aa", "0000:1a:00.0"),
        Gpu("GPU-bb", "0000:1b:00.0"),
        Gpu("", "0000:1c:00.0"),
    )
    assert c.key == "0000:1c:00.0"
    seen = {"2,0": [c, a], "GPU-b": [b], "0,9,1": [a], "MIG-x": [Gpu("MIG-x", "")], "NoDevFiles": []}
    for visible, gpus in seen.items():
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": visible}, tmp_path) == gpus
