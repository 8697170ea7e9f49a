"""Horovod Elastic's command, and the script by which it finds hosts."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.errors import LaunchError
from hvdtrain.launch import discovery
from hvdtrain.launch.discovery import SCRIPT, discovery_argv, hosts_of_slurm
from hvdtrain.launch.elastic import Elastic, local_slots
from hvdtrain.launch.plan import LaunchPlan, Network, Ssh
from hvdtrain.process import Command
from hvdtrain.topology.hostfile import read_hostfile
from hvdtrain.topology.hosts import Cluster, Host, local_cluster, place
from tests.unit.launch.test_commands import PROGRAM, PYTHON, WORDS

HOSTFILES = Path(__file__).parents[3] / "hostfiles"
HOROVODRUN = (PYTHON, "-P", "-m", "horovod.runner.launch", "--gloo")


def plan(cluster=None, size=2, **changes):
    placed = place(cluster or local_cluster(8), size)
    made = LaunchPlan(placed, ("prog", "a b", ""), PYTHON, {}, cores=8, has_horovodrun=True)
    return replace(made, **changes)


def test_the_command_on_this_machine():
    elastic = Elastic(2, 1, 2, ("my python", "list", "a:1,b:1"), (0, 1))
    command = elastic.command(plan())
    assert command.argv == (
        *HOROVODRUN,
        *("-np", "2", "--min-np", "1", "--max-np", "2"),
        *("--host-discovery-script", "'my python' list a:1,b:1", "--network-interfaces", "lo"),
        *("--elastic-timeout", "5"),
        *WORDS,
        *PROGRAM,
    )
    assert command.env == {
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
    }


def test_the_command_on_several_hosts():
    cluster = Cluster((Host("a", 4), Host("b", 4)), "-H")
    ssh = Ssh(2222, "/keys/id")
    made = plan(
        cluster, 8, network=Network(("eth0", "eth1")), ssh=ssh, environ={"MY_TOKEN": "x", "HOME": "/"}
    )
    command = Elastic(8, 4, None, ("python", "list", "a:4,b:4")).command(made)
    assert command.argv == (
        *HOROVODRUN,
        *("-np", "8", "--min-np", "4", "--host-discovery-script", "python list a:4,b:4"),
        *("--network-interfaces", "eth0,eth1", "--ssh-port", "2222", "--ssh-identity-file", "/keys/id"),
        *WORDS,
        *("--beat", "1"),
        *PROGRAM,
    )
    assert "HVDTRAIN_RANKS_PER_HOST" not in command.env
    assert command.unset == ("MY_TOKEN",)


def test_a_rank_of_this_machine_takes_the_gpu_of_its_slot():
    """All of them are local rank 0 of their host; there may come to be more of them than begin."""
    elastic = Elastic(3, 1, 4, ("python",), (0, 1, 2, 3))
    argv = elastic.command(plan(size=3, uses_gpus=True)).argv
    assert argv[argv.index("--gpus") + 1] == "slots:0,1,2,3"
    assert argv[-len(PROGRAM) :] == PROGRAM
    argv = replace(elastic, gpus=()).command(plan(size=3, uses_gpus=True)).argv
    assert argv[argv.index("--gpus") + 1] == "all"


def test_what_it_refuses(tmp_path, monkeypatch):
    elastic = Elastic(2, 1, None, ("python",))
    two = Cluster((Host("a", 1), Host("b", 1)), "-H")
    net = Network(("eth0",))
    assert elastic.refusal(plan(two, network=net)) == ""
    assert "not installed" in elastic.refusal(plan(has_horovodrun=False))
    assert "IPv6" in elastic.refusal(plan(Cluster((Host("fd00::2", 2),), "-H")))
    assert "--ssh-identity" in elastic.refusal(plan(two, network=net, ssh=Ssh(identity="/my keys/id")))
    assert "--nic" in elastic.refusal(plan(two))
    folder = tmp_path / "my folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert "my folder" in elastic.refusal(plan(two, network=net))
    assert elastic.refusal(plan()) == ""


def test_each_slot_of_this_machine_has_a_name_of_its_own():
    assert local_slots(3) == "127.0.0.1:1,127.0.0.01:1,127.0.0.001:1"


def ask(*words):
    argv = discovery_argv(sys.executable, *map(str, words))
    return subprocess.run(argv, capture_output=True, text=True, env={}, check=False)


@pytest.mark.parametrize("path", sorted(HOSTFILES.glob("*")), ids=lambda path: path.name)
def test_the_script_reads_hostfiles_as_everybody_else_here(path):
    told = ask("hostfile", path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == [f"{host.name}:{host.slots}" for host in read_hostfile(path).hosts]


def test_the_script_reads_again_what_the_user_wrote(tmp_path):
    path = tmp_path / "my $hosts"
    path.write_text("a slots=2  # old\n")
    assert ask("hostfile", path).stdout == "a:2\n"
    path.write_text("a slots=2\nb:8\n")
    assert ask("hostfile", path, 4).stdout == "a:2\nb:4\n"
    path.write_text("a slots=\n")
    told = ask("hostfile", path)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("hvdtrain: error: ")


def test_the_script_takes_a_list_as_it_is():
    assert ask("list", "a:2,b:1").stdout == "a:2\nb:1\n"
    assert ask("lost").returncode == 2
    assert SCRIPT.endswith("startup/discover.py")


def test_hosts_that_slurm_calls_down_are_left_out():
    asked = []

    def answer(cmd):
        asked.append(cmd.argv)
        # A node stands once for each of its partitions.
        return "n1 allocated\nn2 down*\nn3 mixed\nn3 mixed\nn4 draining\nn5 failing\nn6 allocated*\n"

    assert hosts_of_slurm("n1:2,n2:2,n3:1,n4:1,n5:1,n6:1,n7:1", answer) == ["n1:2", "n3:1", "n4:1", "n7:1"]
    assert asked == [
        ("sinfo", "--noheader", "--Node", "--nodes=n1,n2,n3,n4,n5,n6,n7", "--format=%N %T"),
    ]


def test_slurm_that_does_not_answer_is_told_of(tmp_path, monkeypatch):
    """Horovod keeps the hosts that it has then."""
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'slurmctld is down' >&2\nexit 1\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="sinfo: slurmctld is down"):
        hosts_of_slurm("n1:2")
    assert discovery.main(["slurm", "n1:2"]) == 1
    sinfo.unlink()
    with pytest.raises(LaunchError, match="sinfo"):
        discovery._ask(Command(("sinfo",)))
