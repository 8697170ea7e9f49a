"""Edits fit exactly once or fail."""

import pytest

from hvdtrain.errors import BuildError
from hvdtrain.tools.build_horovod.edits import Edit, apply_edits, edits_for

EDIT = Edit("name", "why", "a/file.txt", "old line\n", "new line\n")


def write(tmp_path, text):
    path = tmp_path / "a/file.txt"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_the_text_is_replaced_and_the_rest_stays(tmp_path):
    path = write(tmp_path, "before\nold line\nafter\n")
    apply_edits((EDIT,), tmp_path)
    assert path.read_text() == "before\nnew line\nafter\n"


@pytest.mark.parametrize(("text", "count"), [("other\n", 0), ("old line\nold line\n", 2), ("new line\n", 0)])
def test_anything_but_once_is_an_error_that_names_the_edit_and_the_file(tmp_path, text, count):
    path = write(tmp_path, text)
    with pytest.raises(BuildError, match=rf"edit name: its text stands {count} times in a/file\.txt"):
        apply_edits((EDIT,), tmp_path)
    assert path.read_text() == text


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(BuildError, match=r"edit name: cannot read a/file\.txt"):
        apply_edits((EDIT,), tmp_path)


@pytest.mark.parametrize("standard", [17, 20])
def test_both_cmake_files_get_the_standard(standard):
    edits = {
        edit.path: edit.new for edit in edits_for(standard, with_cuda=False) if "CXX_STANDARD" in edit.new
    }
    line = f"set(CMAKE_CXX_STANDARD {standard})"
    assert edits == {"CMakeLists.txt": line, "horovod/torch/CMakeLists.txt": line}


def test_only_a_cpu_build_hides_the_toolkit():
    cpu, cuda = ({edit.name for edit in edits_for(17, with_cuda=with_cuda)} for with_cuda in (False, True))
    assert cpu - cuda == {"no-cuda-torch", "no-cuda-language"}
    assert cuda < cpu


def test_names_are_unique():
    names = [edit.name for edit in edits_for(20, with_cuda=False)]
    assert len(names) == len(set(names))
