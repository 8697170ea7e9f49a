"""Which GPU a rank takes: the driver's listing, what the process may open, and CUDA_VISIBLE_DEVICES."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.elastic import local_slots
from hvdtrain.launch.gpus import Gpu, visible_gpus
from hvdtrain.launch.seat import take_seat
from hvdtrain.topology.environ import World


@pytest.fixture
def node(tmp_path):
    """The driver's listing of eight GPUs; by PCI address their device numbers run backwards."""
    for index in range(8):
        entry = tmp_path / f"0000:{index:02x}:00.0"
        entry.mkdir()
        (entry / "information").write_text(f"GPU UUID: \t GPU-{index}\nDevice Minor: \t {7 - index}\n")
    return tmp_path


@pytest.mark.parametrize("rank", range(8))
def test_task_that_may_open_one_gpu_of_eight(node, rank):
    """Slurm's ConstrainDevices: every task has CUDA_VISIBLE_DEVICES=0, and each means another GPU."""
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    seen = visible_gpus(environ, node, lambda minor: minor == 7 - rank)
    assert [gpu.uuid for gpu in seen] == [f"GPU-{rank}"]
    world = World(rank, 8, rank, 8, launcher="slurm")
    assert take_seat(world, "all", "none", environ, seen).gpu == seen[0]


@pytest.mark.parametrize(
    ("answers", "uuids"),
    [
        ({}, [f"GPU-{index}" for index in range(8)]),  # no device file yet: nothing is known
        ({0: True, 3: True}, ["GPU-4", "GPU-7"]),  # a container has the files of its own GPUs
        (dict.fromkeys(range(8), False), []),
    ],
)
def test_gpus_without_a_device_file(node, answers, uuids):
    assert [gpu.uuid for gpu in visible_gpus({}, node, answers.get)] == uuids


def test_gpu_that_tells_no_device_number_is_kept(node):
    (node / "0000:00:00.0" / "information").write_text("GPU UUID: GPU-0\n")
    assert [gpu.uuid for gpu in visible_gpus({}, node, lambda minor: minor == 0)] == ["GPU-0", "GPU-7"]


def test_chosen_gpu_is_named_in_the_order_of_the_listing():
    seen = [Gpu("GPU-a", "0000:01:00.0"), Gpu("GPU-b", "0000:02:00.0")]
    seat = take_seat(World(0, 2, 0, 2), "1,0", "none", {}, seen)
    assert seat.gpu == seen[1]
    assert seat.env == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with pytest.raises(InputError, match="rank 1 is placed on GPU 2, but its host shows 2"):
        take_seat(World(1, 2, 1, 2), "1,2", "none", {}, seen)


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("slot", range(3))
def test_named_slot_tells_the_gpu_whatever_number_the_rank_has(rank, slot):
    seen = [Gpu(f"GPU-{index}", f"0000:0{index}:00.0") for index in range(3)]
    environ = {"HOROVOD_HOSTNAME": local_slots(3).split(",")[slot].partition(":")[0]}
    world = World(rank, 3, 0, 1, launcher="horovod")
    assert take_seat(world, "slots:2,0,1", "none", environ, seen).gpu == seen[(2, 0, 1)[slot]]
