"""Defaults of a site."""

from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.site import Site, read_site, site_path


def test_where_it_is():
    assert site_path({"HOME": "/h"}) == Path("/h/.config/hvdtrain/site.yaml")
    assert site_path({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}) == Path("/c/hvdtrain/site.yaml")


def test_without_a_file_nothing_is_preset(tmp_path):
    assert read_site(tmp_path / "none") == Site()


def test_values(tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text("partition: gpu\nmodules: [gcc/12, 12.4]\nsetup: ulimit -c 0\nsbatch: {mail-type: END}\n")
    assert read_site(path) == Site(
        partition="gpu", modules=("gcc/12", "12.4"), setup=("ulimit -c 0",), sbatch={"mail-type": "END"}
    )
    path.write_text("# nothing yet\n")
    assert read_site(path) == Site()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitoin: x", "did you mean partition?"),
        ("a: [", "no YAML"),
        ("- a", "keys and values"),
        ("nic: [a]", "legal: nic: one value"),
        ("sbatch: x", "legal: sbatch: "),
    ],
)
def test_mistakes(tmp_path, text, message):
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_site(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
