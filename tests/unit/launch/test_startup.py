"""What the programs' own Python reads at start: it may be older than hvdtrain's."""

import ast
from pathlib import Path

import pytest

from hvdtrain.launch import startup

OLDEST = (3, 7)
SOURCE = (Path(startup.__file__).parent / "sitecustomize.py").read_text()


def test_sitecustomize_can_be_read_by_an_old_python():
    tree = ast.parse(SOURCE, feature_version=OLDEST)
    # Unions and subscripted built-ins in annotations are syntax to every Python, but values to an old one.
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert [alias.name for node in futures for alias in node.names] == ["annotations"]


def test_that_test_can_fail():
    with pytest.raises(SyntaxError):
        ast.parse("if kept := []: pass", feature_version=OLDEST)
