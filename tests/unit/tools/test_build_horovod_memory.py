"""Memory that a cgroup limits: made-up hierarchies in the kernel's own formats."""

import psutil
import pytest

from hvdtrain.tools.build_horovod.memory import cgroup_memory_mib, free_memory_mib

MIB = 1 << 20
V1_WITHOUT_LIMIT = 9223372036854771712


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cgroup"


def v2(folder, limit_mib, used_mib, cached_mib=0):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text("max\n" if limit_mib is None else f"{limit_mib * MIB}\n")
    (folder / "memory.current").write_text(f"{used_mib * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached_mib * MIB}\nactive_file 7\n")


def v1(folder, limit_mib, used_mib, cached_mib=0):
    folder.mkdir(parents=True, exist_ok=True)
    limit = V1_WITHOUT_LIMIT if limit_mib is None else limit_mib * MIB
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used_mib * MIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file 3\ntotal_inactive_file {cached_mib * MIB}\n")


SLURM_V2 = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
SLURM_V1 = "9:cpu,cpuacct:/slurm/uid_0/job_7\n4:memory:/slurm/uid_0/job_7/step_0\n1:name=systemd:/x\n0::/\n"


def test_a_slurm_job_v2(root):
    job = root / "system.slice/slurmstepd.scope/job_7"
    v2(job, 4096, 1000, 200)
    v2(job / "step_0/user/task_0", None, 900)
    assert cgroup_memory_mib(SLURM_V2, root) == 4096 - 1000 + 200


def test_a_slurm_job_v1(root):
    v1(root / "memory/slurm/uid_0/job_7/step_0", 2048, 500, 100)
    v1(root / "memory/slurm/uid_0/job_7", 3000, 2000)
    v1(root / "memory", None, 9000)
    assert cgroup_memory_mib(SLURM_V1, root) == 1000


@pytest.mark.parametrize("name", ["/", "/docker/0123", "/../../kubepods/pod1"])
def test_a_container_sees_its_limit_at_the_mounts_root(root, name):
    v2(root, 3072, 1024)
    assert cgroup_memory_mib(f"0::{name}\n", root) == 2048
    v1(root / "memory", 1536, 512)
    assert cgroup_memory_mib(f"4:memory:{name}\n", root) == 1024


def test_no_limit(root):
    root.mkdir()
    assert cgroup_memory_mib("0::/user.slice\n", root) is None
    v2(root / "user.slice", None, 300)
    assert cgroup_memory_mib("0::/user.slice\n", root) is None
    assert cgroup_memory_mib("", root) is None


def test_a_group_over_its_limit_has_nothing_left(root):
    v2(root, 100, 120)
    assert cgroup_memory_mib("0::/\n", root) == 0


def test_the_real_one_is_no_more_than_the_machine_has():
    assert 0 <= free_memory_mib() <= psutil.virtual_memory().total >> 20
