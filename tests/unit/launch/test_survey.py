"""Asking the hosts: over a real process in the place of ssh, and without waiting longer than needed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hvdtrain
from hvdtrain.errors import LaunchError
from hvdtrain.launch.plan import LaunchPlan, SlurmFacts, Ssh
from hvdtrain.launch.survey import UnknownHostError, ask_each, ask_hosts, remote_argv
from hvdtrain.topology.hosts import Cluster, Host, place


def plan_of(environ, *names, **changes):
    cluster = Cluster(tuple(Host(name, 1) for name in names), "-H")
    return LaunchPlan(place(cluster), ("true",), sys.executable, environ, **changes)


def stand_in(folder: Path, text: str) -> dict[str, str]:
    """An environment whose ssh is this shell script."""
    (folder / "ssh").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "ssh").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_ssh_shares_no_connection_and_asks_no_question():
    argv = remote_argv(plan_of({}, "a", ssh=Ssh(2222)), "a", ("x", "b c"))
    assert argv == (
        *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlPath=none"),
        *("-p", "2222", "--", "a", "x 'b c'"),
    )


def test_reports_stand_in_the_order_of_the_hosts(tmp_path):
    script = 'for word; do [ "$last" = -- ] && host=$word; last=$word; done\n'
    environ = stand_in(tmp_path, script + 'echo motd; echo "{\\"host\\": \\"$host\\"}"')
    assert ask_hosts(plan_of(environ, "b1", "a1")) == [{"host": "b1"}, {"host": "a1"}]


def test_a_host_that_cannot_be_asked_waits_for_no_other(tmp_path):
    script = "case \"$*\" in *'-- bad '*) echo refused >&2; exit 255;; esac\n"
    script += "echo $$ > pid.tmp; mv pid.tmp pid; exec sleep 300"
    environ = stand_in(tmp_path, f"cd {tmp_path}\n{script}")
    with pytest.raises(LaunchError, match="host bad cannot be asked about itself: refused"):
        ask_hosts(plan_of(environ, "bad", "good"))
    if (tmp_path / "pid").exists():
        assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_name_of_no_host_is_the_users_input(tmp_path):
    said = "ssh: Could not resolve hostname nohost: Name or service not known"
    environ = stand_in(tmp_path, f"echo '{said}' >&2; exit 255")
    with pytest.raises(UnknownHostError, match="host nohost: there is no host of this name") as caught:
        ask_hosts(plan_of(environ, "nohost"))
    assert caught.value.exit_code == 2
    told = "host nohost: there is no host of this name; correct it in the list of hosts"
    assert ask_each(plan_of(environ, "nohost"), ["nohost"]) == {"nohost": told}


def test_each_host_answers_for_itself(tmp_path):
    """A host that does not answer is told of beside the others, over ssh and in a Slurm job."""
    script = 'case " $* " in *" -- bad "* | *=bad*) echo refused >&2; exit 255;; esac\n'
    environ = stand_in(tmp_path, script + 'echo "{\\"host\\": \\"good\\"}"')
    assert ask_each(plan_of(environ, "good"), ["good", "bad"]) == {
        "good": {"host": "good"},
        "bad": "host bad cannot be asked about itself: refused",
    }
    (tmp_path / "ssh").rename(tmp_path / "srun")
    plan = plan_of(environ, "good", slurm=SlurmFacts(("good", "bad")))
    assert ask_each(plan, ["good", "bad"]) == {
        "good": {"host": "good"},
        "bad": "srun cannot be asked about itself: refused",
    }


def test_an_interrupt_ends_the_questions(tmp_path):
    environ = stand_in(tmp_path, f"cd {tmp_path}\necho $$ > tmp.$$; mv tmp.$$ pid.$$\nexec sleep 300")
    words = [sys.executable, "-m", "hvdtrain.cli.main", "run", "-H", "a1:1,b1:1", "--", "true"]
    environ |= {"PYTHONPATH": str(Path(hvdtrain.__file__).parents[1]), "HOME": str(tmp_path)}
    process = subprocess.Popen(
        words,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
    )
    try:
        while len(list(tmp_path.glob("pid.*"))) < 2:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=15)  # less than the time that a host is given
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, said.splitlines()[-1]) == (130, "hvdtrain: error: interrupted")
    for file in tmp_path.glob("pid.*"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.suffix[1:]), 0)
