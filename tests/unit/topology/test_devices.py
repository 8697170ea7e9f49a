"""Device indices (cases C7 and C10)."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.topology.devices import Seat, check_seats, device_index
from hvdtrain.topology.environ import World


def world(local_rank, local_size, launcher="slurm"):
    return World(local_rank, local_size, local_rank, local_size, 0, 1, launcher)


@pytest.mark.parametrize("visible", ["0", "3", "GPU-8f2b", "MIG-GPU-8f2b/1/0", "MIG-8f2b"])
def test_case_c7_one_visible_device_is_device_0(visible):
    assert device_index(world(3, 8), visible, 1) == 0


@pytest.mark.parametrize("launcher", ["slurm", "openmpi", "local"])
@pytest.mark.parametrize("visible", ["0,1,2,3", "4,5,6,7", "GPU-a,GPU-b,GPU-c,GPU-d", None])
def test_case_c7_several_visible_devices(visible, launcher):
    assert [device_index(world(rank, 4, launcher), visible, 4) for rank in range(4)] == [0, 1, 2, 3]


def test_slurm_hands_out_devices_per_task():
    # --gpus-per-task=2: every task sees two devices of its own.
    assert [device_index(world(rank, 4), "0,1", 2) for rank in range(4)] == [0, 1, 0, 1]


def test_case_c10a_grid_engine_numbers():
    assert [device_index(world(0, 1, "openmpi"), visible, 1) for visible in "1113"] == [0, 0, 0, 0]


@pytest.mark.parametrize("visible", ["NoDevFiles", "", "-1", " ", "void"])
def test_hidden_devices(visible):
    with pytest.raises(InputError, match="sees no GPU"):
        device_index(world(0, 1), visible, 0)


def test_no_device_at_all():
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES is not set"):
        device_index(world(0, 1), None, 0)


@pytest.mark.parametrize(("visible", "num_visible"), [("0,1", 2), (None, 1), (None, 2)])
def test_local_rank_without_a_device(visible, num_visible):
    with pytest.raises(InputError, match=f"local rank 2 of 4 has no GPU: {num_visible} visible"):
        device_index(world(2, 4, "openmpi"), visible, num_visible)


def test_case_c10b_two_ranks_on_one_gpu():
    seats = [Seat(0, "n1", "GPU-a"), Seat(1, "n2", "GPU-c"), Seat(2, "n1", "GPU-b"), Seat(3, "n1", "GPU-b")]
    with pytest.raises(InputError, match="ranks 2 and 3 share GPU GPU-b on host n1"):
        check_seats(seats)
    check_seats(seats[:3])


def test_one_machine_under_two_names():
    with pytest.raises(InputError, match="ranks 0 and 8 share GPU GPU-a on host localhost and n1"):
        check_seats([Seat(0, "localhost", "GPU-a"), Seat(8, "n1", "GPU-a")])


def test_ranks_on_cpus_share_a_host():
    check_seats([Seat(0, "n1"), Seat(1, "n1")])
