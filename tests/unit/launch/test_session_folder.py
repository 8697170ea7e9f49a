"""What killed launchers of Open MPI leave, and what a later one takes away."""

import os
import time

from hvdtrain.launch import openmpi


def test_only_old_and_empty_session_folders_are_removed(tmp_path):
    long_ago = time.time() - 2 * 86_400
    for name in ("hvdtrain-abcd_123", "hvdtrain-inwork00", "hvdtrain-verify-abcd1234", "other-abcd1234"):
        (tmp_path / name).mkdir()
    (tmp_path / "hvdtrain-inwork00" / "prte.1").mkdir()
    (tmp_path / "hvdtrain-file0000").write_text("")
    (tmp_path / "hvdtrain-link0000").symlink_to("other-abcd1234")
    for path in tmp_path.iterdir():
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
    (tmp_path / "hvdtrain-new00000").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    openmpi._remove_stale(tmp_path)
    assert before - {path.name for path in tmp_path.iterdir()} == {"hvdtrain-abcd_123"}
