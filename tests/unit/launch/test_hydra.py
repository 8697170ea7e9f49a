"""What hvdtrain knows of MPICH's own ways."""

import pytest

from hvdtrain.launch.hydra import notes
from hvdtrain.launch.mpirun import parse_version
from hvdtrain.launch.plan import LaunchPlan, MpiFacts
from hvdtrain.topology.hosts import Cluster, Host, place

# The first lines of Debian 12's `mpirun.mpich --version`, shortened.
DEBIAN = """HYDRA build details:
    Version:                                 4.0.2
    Release Date:                            Thu Apr  7 12:34:45 CDT 2022
    Configure options:                       '--with-hwloc-prefix=/usr' '--with-device=ch4:ucx' 'FFLAGS=-O2'
    Process Manager:                         pmi
"""


def test_device_of_debians_mpich():
    facts = parse_version("/usr/bin/mpirun.mpich", DEBIAN)
    assert (facts.vendor, facts.version, facts.device) == ("mpich", (4, 0, 2), "ch4:ucx")


@pytest.mark.parametrize(
    ("slots", "version", "device", "may_hang"),
    [
        ((1, 2), (4, 0, 2), "ch4:ucx", True),
        ((2, 2), (4, 1, 2), "ch4:ucx", True),
        ((1, 1), (4, 0, 2), "ch4:ucx", True),
        ((4,), (4, 0, 2), "ch4:ucx", False),
        ((1, 2), (4, 2), "ch4:ucx", False),
        ((1, 2), (4, 0, 2), "ch4:ofi", False),
        ((1, 2), (4, 0, 2), "", False),
    ],
)
def test_mpich_that_may_hang_at_its_end(slots, version, device, may_hang):
    mpi = MpiFacts("/usr/bin/mpirun", "mpich", version, "/usr", device)
    hosts = tuple(Host(f"h{index}", count) for index, count in enumerate(slots, 1))
    told = notes(LaunchPlan(place(Cluster(hosts, "-H")), ("p",), "python", {}, mpi=mpi))
    assert any("may hang in MPI_Finalize" in note for note in told) == may_hang
