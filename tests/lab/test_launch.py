"""Launches over real hosts and a real Slurm: by every launcher, with every way to fail."""

from __future__ import annotations

import json
import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from hvdtrain.process import end_group
from hvdtrain.topology.hostfile import parse_hostfile

pytestmark = pytest.mark.lab

TIMEOUT_S = 120
HOSTFILES = Path(__file__).parents[2] / "hostfiles"
# What a shell, ssh, mpirun, srun or horovodrun could take for theirs.
HOSTILE = [
    "a b",
    "",
    "$HOME",
    "`id`",
    "$(touch /tmp/pwned)",
    ";",
    "a;b",
    "&&",
    "|",
    "<",
    "*",
    "?",
    "~",
    "#x",
    '"',
    "'",
    "'\"'",
    "\\",
    "\\n",
    "new\nline",
    "tab\t",
    "ünïcode 中文",
    "--",
    "-np",
    "3",
    "-x",
    "PATH",
    "--mca",
    "pml",
    ":",
    "%h",
    "{}",
    "!",
    "a,b",
    "x=y",
]
HOROVOD = """
import json, os
import horovod.torch as hvd, torch

hvd.init()
total = float(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)[0])
told = [os.uname().nodename, hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), total]
print(json.dumps(told))
"""
RANK = """
import os, signal, sys, time
from hvdtrain.topology.environ import find_world
world = find_world(os.environ)
"""
# Said before what a rank does, unless that says it itself.
READY = "print('ready', flush=True)\n"
needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="needs Horovod: make build-horovod")


def words_of(lab, *words):
    return [lab.python, "-P", "-m", "hvdtrain.cli.main", *words]


def in_allocation(lab, hosts, *words):
    """The words inside a Slurm job of these hosts, and the environment that Slurm's commands need."""
    layout = [f"{host}:{slots}" for host, slots in hosts.items()]
    nodes = ["salloc", "--quiet", "--exclusive", f"--nodes={len(layout)}", "--nodelist=" + ",".join(hosts)]
    return [*nodes, *words_of(lab, "run", "-H", ",".join(layout), *words)], lab.slurm_env


def over_ssh(lab, hosts, *words):
    listed = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    return words_of(lab, "run", "-H", listed, *words), {}


LAYOUTS = ({"h1": 1, "h2": 1}, {"h1": 2, "h2": 1}, {"h1": 1, "h2": 2, "h3": 1})
# the way there, and the host from which it starts
WAYS = {"mpirun": (over_ssh, "h1"), "horovodrun": (over_ssh, "h1"), "srun": (in_allocation, "head")}


def launch(lab, launcher, hosts, *words, **options):
    way, host = WAYS[launcher]
    argv, env = way(lab, hosts, "--launcher", launcher, *words)
    return lab.exec(host, argv, env=env, timeout=TIMEOUT_S, **options)


def start(lab, launcher, hosts, *words):
    way, host = WAYS[launcher]
    argv, env = way(lab, hosts, "--launcher", launcher, *words)
    return lab.start(host, argv, env=env)


def assert_nothing_left(lab, *hosts):
    assert {host: lab.left_over(host) for host in hosts} == {host: [] for host in hosts}


@pytest.fixture
def program(tmp_path):
    """Writes the code of a rank to a file: the lab lists processes a line each."""

    def write(code):
        path = tmp_path / "rank.py"
        path.write_text(RANK + (code if READY in code else READY + code))
        return str(path)

    return write


@pytest.fixture
def job(slurm, program):
    """Starts a launch in the background and waits until all its ranks said ``ready``; ends what is left."""
    started = []

    def begin(launcher, hosts, code, *options):
        process = start(slurm, launcher, hosts, *options, "--", slurm.python, program(code))
        started.append(process)
        ready = 0
        while ready < sum(hosts.values()):
            line = process.stdout.readline().decode()
            assert line, process.stderr.read().decode()
            ready += "ready" in line
        return process

    yield begin
    for process in started:
        end_group(process.pid)
        process.communicate()
    cleared = slurm.exec("head", ["scancel", "--user=root"], env=slurm.slurm_env)
    assert cleared.returncode == 0, cleared.stderr


def finish(process, seconds=60):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out.decode(), err.decode()


@needs_horovod
@pytest.mark.parametrize(
    "hosts", [{"h1": 1, "h2": 1}, {"h1": 2, "h2": 1}, {"h1": 1, "h2": 2, "h3": 1}], ids=str
)
@pytest.mark.parametrize("launcher", WAYS)
def test_horovod_program_on_unequal_hosts(slurm, tmp_path, launcher, hosts):
    program = tmp_path / "horovod it.py"
    program.write_text(HOROVOD)
    done = launch(slurm, launcher, hosts, "--no-tag", "--", slurm.python, str(program))
    assert done.returncode == 0, done.stdout + done.stderr
    told = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: one[1])
    size = sum(hosts.values())
    total = size * (size + 1) / 2
    places = [(host, local, slots) for host, slots in hosts.items() for local in range(slots)]
    assert told == [
        [host, rank, size, local, slots, total] for rank, (host, local, slots) in enumerate(places)
    ]
    assert_nothing_left(slurm, *hosts)


@pytest.mark.parametrize("launcher", WAYS)
def test_arguments_arrive_intact(slurm, tmp_path, launcher):
    if launcher == "horovodrun" and find_spec("horovod") is None:
        pytest.skip("needs Horovod")
    folder = tmp_path / "a b;$HOME 中"
    folder.mkdir()
    program = folder / "it's.py"
    program.write_text("import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['VALUE']]))")
    value = "a b;$HOME\n'\"中"
    words = ["--no-tag", "--env", f"VALUE={value}", "--output", str(folder / "logs"), "--"]
    done = launch(slurm, launcher, {"h1": 1, "h2": 1}, *words, slurm.python, str(program), *HOSTILE)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[HOSTILE, value]] * 2
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]
    assert not os.path.exists("/tmp/pwned")


def test_auto_takes_srun_in_an_allocation_and_mpirun_elsewhere(slurm):
    code = ["--no-tag", "--", *words_of(slurm, "whoami", "--json")]
    argv, env = in_allocation(slurm, {"h1": 1, "h2": 2}, *code)
    inside = slurm.exec("head", argv, env=env, timeout=TIMEOUT_S)
    argv, env = over_ssh(slurm, {"h1": 1, "h2": 2}, *code)
    outside = slurm.exec("h1", argv, env=env, timeout=TIMEOUT_S)
    for done, launcher in ((inside, "pmix"), (outside, "openmpi")):
        assert done.returncode == 0, done.stderr
        told = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: one["rank"])
        assert {one["launcher"] for one in told} == {launcher}
        places = [(one["host"], one["local_rank"], one["local_size"], one["node_rank"]) for one in told]
        assert places == [("h1", 0, 1, 0), ("h2", 0, 2, 1), ("h2", 1, 2, 1)]


def test_singletons_under_srun_are_refused_with_the_types(slurm):
    words = ["srun", "-n2", "-N2", "--ntasks-per-node=1", "--mpi=none", *words_of(slurm, "whoami")]
    done = slurm.exec("head", words, env=slurm.slurm_env, timeout=TIMEOUT_S)
    assert done.returncode == 2
    assert "Slurm started 2 tasks but MPI sees 1" in done.stderr
    assert "pmix_v4" in done.stderr


def test_batch_script_is_no_rank(slurm, tmp_path):
    words = ["sbatch", "--wait", "-n2", "-o", str(tmp_path / "out"), "--wrap"]
    wrapped = " ".join(words_of(slurm, "whoami"))
    done = slurm.exec("head", [*words, wrapped], env=slurm.slurm_env, timeout=TIMEOUT_S)
    assert done.returncode == 2
    assert "not a rank of 2; start the ranks with srun or hvdtrain run" in (tmp_path / "out").read_text()


FAILURES = {
    "exception": ("raise RuntimeError('no')", "exit code 1", 1),
    "exit": ("os._exit(7)", "exit code 7", 1),
    "killed": ("os.kill(os.getpid(), 9)", "killed by signal 9 (probably out of memory)", 137),
}


@pytest.mark.parametrize("case", FAILURES)
@pytest.mark.parametrize("launcher", ["mpirun", "srun", pytest.param("horovodrun", marks=needs_horovod)])
def test_one_rank_fails_and_all_end(slurm, program, launcher, case):
    action, how, exit_code = FAILURES[case]
    code = f"if world.rank == 2:\n time.sleep(1)\n {action}\ntime.sleep(300)"
    done = launch(slurm, launcher, {"h1": 2, "h2": 1}, "--", slurm.python, program(code))
    assert done.returncode == exit_code, done.stderr
    assert f"hvdtrain: rank 2 on host h2 failed: {how}\n" in done.stderr
    assert done.stderr.count("Traceback") == (case == "exception")
    assert_nothing_left(slurm, "h1", "h2")


@pytest.mark.parametrize("launcher", ["mpirun", "srun", pytest.param("horovodrun", marks=needs_horovod)])
def test_ctrl_c_gives_the_ranks_time_to_save(job, slurm, launcher):
    code = "def save(*_):\n time.sleep(1)\n print('saved', flush=True)\n os._exit(75)\n"
    code += f"signal.signal(signal.SIGTERM, save)\n{READY}while True: time.sleep(0.1)"
    process = job(launcher, {"h1": 1, "h2": 1}, code)
    interrupt(slurm, launcher, signal.SIGINT)
    returncode, out, err = finish(process)
    assert returncode == 75, err
    assert out.count("saved") == 2
    assert_nothing_left(slurm, "h1", "h2")


def interrupt(lab, launcher, number):
    """Signals the supervisor itself: what the test started is the way into the host's namespaces."""
    host = WAYS[launcher][1]
    found = [
        pid
        for pid, words in lab.processes(host)
        if "hvdtrain.cli.main run" in words and "salloc" not in words
    ]
    assert len(found) == 1, lab.processes(host)
    os.kill(found[0], number)


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_ctrl_c_twice_kills_on_all_hosts(job, slurm, launcher):
    code = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{READY}time.sleep(300)"
    process = job(launcher, {"h1": 1, "h2": 1}, code)
    interrupt(slurm, launcher, signal.SIGINT)
    assert b"asking the ranks to end" in process.stderr.readline()
    interrupt(slurm, launcher, signal.SIGINT)
    returncode, _, err = finish(process)
    assert returncode == 130, err
    assert_nothing_left(slurm, "h1", "h2")


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_time_limit_ends_a_hung_rank(slurm, program, launcher):
    hung = program("if world.rank: time.sleep(300)")
    done = launch(slurm, launcher, {"h1": 1, "h2": 1}, "--timeout", "3", "--", slurm.python, hung)
    assert done.returncode == 4, done.stderr
    assert "did not end within its time limit of 3 s" in done.stderr
    assert_nothing_left(slurm, "h1", "h2")


def test_host_that_crashes(job, slurm):
    process = job("mpirun", {"h1": 1, "h2": 1}, "time.sleep(300)")
    slurm.crash("h2")
    try:
        returncode, _, err = finish(process, 30)
    finally:
        slurm.poweron("h2")
        slurm.restart_slurmd("h2")
    assert returncode != 0
    assert "h2" in err
    assert_nothing_left(slurm, "h1", "h2")


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_host_that_is_cut_off(job, slurm, launcher):
    process = job(launcher, {"h1": 1, "h2": 1}, "time.sleep(300)")
    slurm.cut("h2")
    try:  # unnoticed, it would hang for ever: the ranks sleep, and nobody sends anything
        returncode, _, err = finish(process)
    finally:
        slurm.heal("h2")
    assert returncode == 1, err
    assert_nothing_left(slurm, "h1", "h2")


@pytest.mark.parametrize("name", ["two-nodes", "unequal-slots", "pbs-nodefile", "horovod", "commented"])
def test_sample_hostfiles_run(lab, tmp_path, name):
    """With the lab's hosts in place of the sample's, and as many ranks as reach the second one."""
    text = (HOSTFILES / name).read_text()
    cluster = parse_hostfile(text, name)
    for host, ours in zip(cluster.hosts, lab.hosts, strict=False):
        text = re.sub(rf"\b{host.name}\b", ours, text)
    (tmp_path / "hosts").write_text(text)
    size = cluster.hosts[0].slots + 1
    words = ["run", "--hostfile", str(tmp_path / "hosts"), "-np", str(size), "--no-tag", "--", "hostname"]
    done = lab.exec("h1", words_of(lab, *words), timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["h1"] * (size - 1) + ["h2"]


def test_ssh_options_reach_every_connection(lab, tmp_path):
    key = tmp_path / "key"
    key.write_bytes((lab.folder / "ssh" / "user").read_bytes())
    key.chmod(0o600)
    words = ["--ssh-port", "22", "--ssh-identity", str(key), "--", "hostname"]
    argv, env = over_ssh(lab, {"h1": 1, "h2": 1}, "--no-tag", *words)
    done = lab.exec("h1", argv, env=env, timeout=TIMEOUT_S)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["h1", "h2"]), done.stderr
    argv, env = over_ssh(lab, {"h1": 1, "h2": 1}, "--ssh-port", "23", "--nic", "none", "--", "hostname")
    done = lab.exec("h1", argv, env=env, timeout=TIMEOUT_S)
    assert done.returncode != 0
    assert "port 23" in done.stderr


def test_dry_run_asks_the_hosts_for_their_network(lab):
    argv, env = over_ssh(lab, {"h1": 1, "h2": 1}, "--dry-run", "--json", "--", "true")
    done = lab.exec("head", argv, env=env, timeout=TIMEOUT_S)
    plan = json.loads(done.stdout)
    assert plan["env"]["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert plan["command"][plan["command"].index("btl_tcp_if_include") + 1] == "10.77.0.0/24"
    assert [rank["host"] for rank in plan["ranks"]] == ["h1", "h2"]


def test_host_that_nobody_knows(lab):
    argv, env = over_ssh(lab, {"h1": 1, "nowhere": 1}, "--", "true")
    done = lab.exec("h1", argv, env=env, timeout=TIMEOUT_S)
    assert done.returncode == 2
    assert "host nowhere: there is no host of this name; correct it in the list of hosts" in done.stderr


@pytest.mark.parametrize("hosts", [{"h1.lab.test": 2}, {"h2.lab.test": 1, "h1.lab.test": 2}], ids=str)
def test_full_names_of_hosts_that_call_themselves_by_short_ones(lab, hosts):
    argv, env = over_ssh(lab, hosts, "--no-tag", "--", "hostname")
    done = lab.exec("h1", argv, env=env, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(
        host.partition(".")[0] for host, slots in hosts.items() for _ in range(slots)
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("h2", "10.77.0.2"), "h2 and 10.77.0.2 are the same machine, h2"),
        (("h2", "h2.lab.test"), "h2 (1 slot) and h2.lab.test (1 slot) are the same machine"),
        (("10.77.0.2", "h2.lab.test"), "10.77.0.2 and h2.lab.test are the same machine, h2"),
        (
            ("localhost", "h1.lab.test"),
            "localhost (1 slot) and h1.lab.test (1 slot) are the same machine, this",
        ),
        (("10.77.0.1", "h1"), "10.77.0.1 (1 slot) and h1 (1 slot) are the same machine, this one"),
    ],
)
def test_one_machine_under_two_names(lab, names, message):
    argv, env = over_ssh(lab, dict.fromkeys(names, 1), "--", "true")
    done = lab.exec("h1", argv, env=env, timeout=TIMEOUT_S)
    assert done.returncode == 2
    assert message in done.stderr
