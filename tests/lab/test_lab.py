"""The lab is what it claims to be: hosts of their own, a network between them, Slurm, faults."""

from __future__ import annotations

import json
import signal
import tempfile
import time

import pytest

from hvdtrain.process import Command, end_group, run

pytestmark = pytest.mark.lab

ALLREDUCE = """
import json, socket
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
total = np.empty(1_000_000)
comm.Allreduce(np.full(1_000_000, comm.rank + 1.0), total)
facts = {
    "host": socket.gethostname(),
    "size": comm.size,
    "on_this_host": comm.Split_type(MPI.COMM_TYPE_SHARED).size,
    "sum": float(total[-1]),
}
for line in comm.gather(json.dumps(facts)) or []:
    print(line)
"""
MAILBOX = """
import socket
box = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
box.bind(("", 9999))
print("ready", flush=True)
for _ in range(2):
    print(box.recv(100).decode(), flush=True)
"""
MAIL = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 9999))
"""


@pytest.fixture(scope="module")
def allreduce(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "allreduce.py"
    path.write_text(ALLREDUCE)
    return str(path)


def assert_two_by_two(stdout):
    answers = [json.loads(line) for line in stdout.splitlines()]
    assert sorted(answer["host"] for answer in answers) == ["h1", "h1", "h2", "h2"]
    assert {(answer["size"], answer["on_this_host"], answer["sum"]) for answer in answers} == {(4, 2, 10.0)}


def test_hosts_reach_one_another(lab):
    assert lab.hosts == ("h1", "h2", "h3", "h4")
    told = {}
    for host, peer in zip(lab.hosts, [*lab.hosts[1:], lab.hosts[0]], strict=True):
        done = lab.exec(host, ["ssh", peer, "hostname; hostname --all-ip-addresses; echo $PATH"])
        assert done.returncode == 0, done.stderr
        name, address, path = done.stdout.split("\n")[:3]
        assert name == peer
        assert path.split(":")[0] == str(lab.folder / "env" / "bin")
        told[name] = address.strip()
    assert len(set(told.values())) == len(told) == 4


def test_hosts_share_files_but_not_memory_and_temporary_files(lab, tmp_path):
    words = ["sh", "-c", "touch shared; touch /dev/shm/own $TMPDIR/own"]
    assert lab.exec("h1", words, cwd=tmp_path).returncode == 0
    words = ["sh", "-c", "ls shared; ls /dev/shm $TMPDIR"]
    assert "own" in lab.exec("h1", words, cwd=tmp_path).stdout
    here = lab.exec("h2", words, cwd=tmp_path).stdout
    assert "shared" in here
    assert "own" not in here


def test_exit_code_environment_and_folder_of_a_command(lab, tmp_path):
    done = lab.exec("h3", ["sh", "-c", "echo $WORD; pwd; exit 7"], env={"WORD": "a b"}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, f"a b\n{tmp_path}\n")


def test_mpirun_crosses_the_network(lab, allreduce):
    before = [lab.sent_bytes(host) for host in ("h1", "h2", "h3")]
    done = lab.exec("h1", [*lab.mpirun("h1", "h2", slots=2), lab.python, allreduce])
    assert done.returncode == 0, done.stderr
    assert_two_by_two(done.stdout)
    h1, h2, h3 = (lab.sent_bytes(host) - old for host, old in zip(("h1", "h2", "h3"), before, strict=True))
    # 8 MB are reduced: at least that goes each way
    assert min(h1, h2) >= 8_000_000
    assert h3 < 100_000
    assert lab.left_over("h1") == lab.left_over("h2") == []


def test_srun_with_pmix(slurm, allreduce):
    words = ["srun", "-N2", "--ntasks-per-node=2", "-w", "h1,h2", "--mpi=pmix", slurm.python, allreduce]
    done = slurm.exec("head", words, env=slurm.slurm_env)
    assert done.returncode == 0, done.stderr
    assert_two_by_two(done.stdout)


def test_sbatch_gives_hosts_and_gpus(slurm, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nsrun -l printenv SLURMD_NODENAME CUDA_VISIBLE_DEVICES\n")
    words = ["sbatch", "--wait", "-N2", "--ntasks-per-node=1", "--gpus-per-node=2", "-w", "h3,h4"]
    done = slurm.exec("head", [*words, "-o", str(tmp_path / "out"), str(script)], env=slurm.slurm_env)
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "out").read_text().splitlines()) == ["0: 0,1", "0: h3", "1: 0,1", "1: h4"]


def test_cut_and_heal(lab):
    reach = ["ssh", "-o", "ConnectTimeout=1", "h2", "hostname"]
    lab.cut("h2")
    try:
        assert lab.exec("h1", reach).returncode == 255
        assert lab.exec("h3", ["ssh", "h1", "hostname"]).stdout == "h1\n"
    finally:
        lab.heal("h2")
    assert lab.exec("h1", ["ssh", "-o", "ConnectTimeout=10", "h2", "hostname"]).stdout == "h2\n"


@pytest.mark.parametrize("fault", ["crash", "poweroff"])
def test_a_host_that_is_off_runs_nothing_and_comes_back(lab, fault):
    sleeper = lab.start("h4", ["sleep", "600"])
    try:
        await_processes(lab, "h4", "sleep 600")
        getattr(lab, fault)("h4")
        assert sleeper.wait(timeout=10) != 0
        assert "off: h4" in lab.exec("h4", ["true"]).stderr
        assert lab.exec("h1", ["ssh", "-o", "ConnectTimeout=1", "h4", "true"]).returncode == 255
    finally:
        end_group(sleeper.pid, grace_s=0)
        sleeper.communicate()
        lab.poweron("h4")
    assert lab.exec("h1", ["ssh", "h4", "hostname"]).stdout == "h4\n"
    assert lab.left_over("h4") == []


def await_processes(lab, host, command):
    deadline = time.monotonic() + 10
    while command not in [words for _, words in lab.processes(host)]:
        assert time.monotonic() < deadline, lab.processes(host)
        time.sleep(0.05)


def test_slurm_takes_a_host_back_after_a_crash(slurm):
    slurm.crash("h4")
    slurm.poweron("h4")
    slurm.restart_slurmd("h4")
    done = slurm.exec("head", ["srun", "-w", "h4", "hostname"], env=slurm.slurm_env)
    assert done.stdout == "h4\n", done.stderr


def test_what_is_delayed_is_overtaken(lab, tmp_path):
    (tmp_path / "mail.py").write_text(MAIL)
    (tmp_path / "mailbox.py").write_text(MAILBOX)
    lab.delay("h3", 2_000_000)  # beyond three seconds nobody waits for the answer that tells an address
    mailbox = lab.start("h4", [lab.python, "mailbox.py"], cwd=tmp_path)
    try:
        assert mailbox.stdout.readline() == b"ready\n"
        for host in ("h3", "h2"):  # the second one is sent when the first one is on its way
            assert lab.exec(host, [lab.python, "mail.py", "h4", host], cwd=tmp_path).returncode == 0
        assert mailbox.communicate(timeout=60)[0] == b"h2\nh3\n"
    finally:
        end_group(mailbox.pid, grace_s=0)
        mailbox.communicate()
        lab.delay("h3")


def test_what_is_slowed_down_is_overtaken(lab, tmp_path):
    (tmp_path / "file").write_bytes(bytes(20_000_000))
    send = "ssh {} 'cat > /dev/null' < file"
    lab.rate("h3", "8mbit")
    slow = lab.start("h4", ["sh", "-c", send.format("h3")], cwd=tmp_path)  # 20 s, less the bucket's 256 KB
    try:
        done = lab.exec("h4", ["sh", "-c", send.format("h2")], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert slow.poll() is None
        lab.rate("h3")
        assert slow.wait(timeout=60) == 0
    finally:
        end_group(slow.pid, grace_s=0)
        slow.communicate()
        lab.rate("h3")


def test_one_lab_per_machine(lab, lab_script):
    with tempfile.TemporaryDirectory(prefix="hvdtrain-lab-", dir="/tmp") as second:
        done = run(Command((str(lab_script), "up"), {"LAB": second}), timeout_s=30)
    assert done.returncode == 1
    assert f"a lab is up in {lab.folder}" in done.stderr
    assert lab.exec("h1", ["ssh", "h2", "hostname"]).stdout == "h2\n"


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["up"], {"LAB": "/tmp/a b"}, "LAB=/tmp/a b; legal: "),
        (["up"], {"LAB": "/tmp/" + "long" * 12}, "at most 48"),
        (["up"], {"LAB_HOSTS": "0"}, "LAB_HOSTS=0; legal: 1 to 99"),
        (["fly"], {}, "no such command: fly"),
        (["cut"], {}, "cut needs a host"),
    ],
)
def test_refusals(lab, lab_script, words, env, message):
    done = run(Command((str(lab_script), *words), env), timeout_s=30)
    assert done.returncode == 2
    assert message in done.stderr


def test_interrupting_a_command_ends_it_in_the_host(lab):
    sleeper = lab.start("h2", ["sleep", "601"])
    await_processes(lab, "h2", "sleep 601")
    end_group(sleeper.pid)
    sleeper.communicate()
    assert sleeper.returncode in (
        -signal.SIGTERM,
        -signal.SIGKILL,
        128 + signal.SIGTERM,
        128 + signal.SIGKILL,
    )
    assert lab.left_over("h2") == []
