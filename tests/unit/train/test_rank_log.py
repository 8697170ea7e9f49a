"""The log of a rank that another launcher started, and the signals that end it."""

import os
import signal
import subprocess
import sys

import pytest


def python(code, *words, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_what_is_printed_stands_in_the_log_too(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom hvdtrain.train.rank_log import copy_output\n"
        "copy_output(Path(sys.argv[1]))\nprint('out', flush=True)\nsys.stderr.writelines(['err', '\\n'])\n"
        "assert sys.stdout.fileno() == 1 and not sys.stdout.isatty()\nraise ValueError('last words')\n"
    )
    child = python(code, tmp_path / "rank-1.log")
    out, err = child.communicate(timeout=60)
    log = (tmp_path / "rank-1.log").read_text()
    assert out == "out\n"
    assert log == out + err
    assert log.endswith("ValueError: last words\n")


WAITS = """
import ctypes, os, signal, sys, time
from hvdtrain.train.end_signals import end_on_signals
end_on_signals(lambda number, is_end: os.write(1, f"{number.name} {is_end}".encode()))
child = os.fork()
if child == 0:
    signal.pause()
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
if sys.argv[1] == "taken":
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.write(1, b"ready ")
    time.sleep(1)  # goes on after a signal
    os._exit(75)
os.write(1, b"ready ")
while True:  # a signal ends one sleep
    ctypes.CDLL(None).sleep(60)  # as in a collective: no instruction of Python's between
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_is_noticed_inside_a_collective(name):
    child = python(WAITS, "waits")
    assert os.read(child.stdout.fileno(), 6) == b"ready "
    child.send_signal(signal.Signals[name])
    out, err = child.communicate(timeout=60)
    assert (out, err, child.returncode) == (f"{name} True", "", 128 + signal.Signals[name])


def test_a_handler_that_comes_later_takes_the_signal_which_is_recorded():
    child = python(WAITS, "taken")
    assert os.read(child.stdout.fileno(), 6) == b"ready "
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=60)
    assert (out, child.returncode) == ("SIGTERM False", 75)


def test_a_signal_that_is_ignored_stays_ignored():
    code = (
        "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from hvdtrain.train.end_signals import end_on_signals\nend_on_signals(print)\n"
        "signal.raise_signal(signal.SIGHUP)\nprint('alive')\n"
    )
    out, _ = python(code).communicate(timeout=60)
    assert out == "alive\n"
