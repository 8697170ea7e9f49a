"""Paths below a folder that the user may not search: one line that names the path, and no traceback."""

import os
import shutil

import pytest

from tests.conftest import HVDTRAIN, run_command

_RIGHTS = "-dac_override,-dac_read_search"  # by which root searches everybody's folders


@pytest.fixture
def closed(tmp_path):
    """The path of a folder that may not be searched, and a caller of hvdtrain for whom that is so."""
    folder, words = tmp_path / "closed", list(HVDTRAIN)
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("setpriv is not there, and root searches everything")
        os.chown(folder, 65534, 65534)
        words = ["setpriv", f"--bounding-set={_RIGHTS}", f"--inh-caps={_RIGHTS}", *words]
    else:
        folder.chmod(0)

    def run(*args, **env):
        return run_command([*words, *(word.replace("CLOSED", str(folder)) for word in args)], tmp_path, env)

    yield folder, run
    folder.chmod(0o700)


@pytest.mark.parametrize(
    "line",
    [
        "train --set tuning.timeline=CLOSED/t",
        "train --run-dir CLOSED/x",
        "train --run-dir CLOSED/x --resume",
        "train --set data.source=folder --set data.path=CLOSED/x",
        "profile --output CLOSED/p.json",
        "profile --trace CLOSED/t.json",
        "advise --measured 1:872,8:6679 --html CLOSED/n.html",
        "advise --measured 1:872,8:6679 --params 9M --network CLOSED/n.json",
        "advise --measured 1:872,8:6679 --params 9M --network CLOSED/n",
        "checkpoints CLOSED/x",
        "report CLOSED/x",
        "bench allreduce --save CLOSED/y.json",
        "calibrate --read CLOSED/c",
        "run --ssh-identity CLOSED/key -np 1 -- true",
        "submit --log CLOSED/x/a.log --dry-run -- true",
    ],
)
def test_one_line_names_the_path(closed, line):
    folder, run = closed
    ended = run(*line.split())
    assert ended.code == 2, ended.err
    (told,) = ended.err.splitlines()
    assert told.startswith("hvdtrain: error: ")
    assert str(folder) in told


def test_a_home_of_somebody_elses_presets_nothing(closed):
    folder, run = closed
    for env in ({"HOME": str(folder)}, {"XDG_CONFIG_HOME": str(folder / "x")}):
        ended = run("submit", "--dry-run", "--", "true", **env)
        assert (ended.code, ended.err) == (0, "")


def test_a_cache_that_cannot_be_reached(closed):
    folder, run = closed
    ended = run("build-horovod", "--dry-run", HVDTRAIN_CACHE=str(folder / "cache"))
    assert ended.code == 2
    assert f"no right to write in {folder}" in ended.err
