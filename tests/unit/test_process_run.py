"""Commands that are run to their end, or to the end of their time."""

import os
import signal

import psutil
import pytest

from hvdtrain.process import Command, run


def test_process_outside_the_group_that_holds_the_pipes_is_not_waited_for(tmp_path):
    file = tmp_path / "pid"
    script = f"setsid sh -c 'echo $$ > {file}; exec sleep 60' & exec sleep 60"
    with pytest.raises(TimeoutError, match=r"sh did not end within 0\.5 s"):
        run(Command(("sh", "-c", script)), timeout_s=0.5)
    pid = int(file.read_text())
    try:
        assert psutil.Process(pid).name() == "sleep"
    finally:
        os.kill(pid, signal.SIGKILL)
