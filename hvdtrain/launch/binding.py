"""Which cores a rank may use, by the machine's own description of itself.

The rank agents bind, not the launchers: mpirun's dialects, srun and horovodrun each have words of their own
for it, some do not work everywhere, and none knows which cores are near a GPU.

Source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu, sysfs-bus-pci (local_cpulist).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import InputError

MODES = ("none", "core", "numa", "gpu")
_NODES = Path("/sys/devices/system/node")
_PCI = Path("/sys/bus/pci/devices")


def choose_cores(
    mode: str,
    local_rank: int,
    local_size: int,
    available: Sequence[int],
    domains: Sequence[Sequence[int]] = (),
    per_rank: int | None = None,
) -> list[int]:
    """The cores of one rank.

    Args:
        mode: ``core``: an equal, contiguous share of the cores. ``numa``: the cores of one NUMA node, ranks
            in blocks over the nodes. ``gpu``: the first domain, which is that of the rank's GPU.
        local_rank: The rank's index on this host.
        local_size: Ranks on this host.
        available: Cores that this host gives the job, ascending.
        domains: Cores of each NUMA node, or of the GPU alone.
        per_rank: Cores of each rank; None shares all of them.

    Raises:
        InputError: There are fewer cores than the ranks ask for.
    """
    if mode == "core":
        num = per_rank or len(available) // local_size
        if num < 1 or num * local_size > len(available):
            raise InputError(
                f"{local_size} ranks of {max(num, 1)} core(s) on a host that gives {len(available)} core(s)",
                where="--bind core",
                do="start fewer ranks on it, lower --cores-per-rank, or use --bind none",
            )
        return list(available[local_rank * num : (local_rank + 1) * num])
    usable = [kept for domain in domains if (kept := [core for core in domain if core in set(available)])]
    if not usable:
        return list(available)
    return usable[0] if mode == "gpu" else usable[local_rank * len(usable) // local_size]


def numa_nodes(root: Path = _NODES) -> list[list[int]]:
    """The cores of each NUMA node that has some, in the nodes' order."""
    nodes = sorted(root.glob("node[0-9]*"), key=lambda node: int(node.name[4:]))
    lists = (parse_cpu_list((node / "cpulist").read_text()) for node in nodes)
    return [cores for cores in lists if cores]


def cores_near(bus: str, root: Path = _PCI) -> list[int]:
    """The cores nearest to the device at a PCI address, ``0000:1b:00.0``; none where nothing tells."""
    path = root / bus.lower() / "local_cpulist"
    return parse_cpu_list(path.read_text()) if bus and path.is_file() else []


def parse_cpu_list(text: str) -> list[int]:
    """Reads the kernel's ``0-3,8``."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cores += range(int(first), int(last or first) + 1)
    return cores
