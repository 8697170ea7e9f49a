import sys
from functools import partial

import pytest

from hvdtrain.data.factory import call_factory, find_module, import_factory
from hvdtrain.errors import InputError


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of the user's and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(text, name="users_data"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refused(spec):
    with pytest.raises(InputError) as caught:
        import_factory(spec, where="data.source")
    assert str(caught.value).startswith("data.source: ")
    return str(caught.value)


def test_finds_a_function(module):
    module("def make(a, b=2):\n    return a + b\n")
    factory = import_factory("users_data:make", where="data.source")
    assert call_factory(factory, {"a": 1}, spec="users_data:make", where="data.args") == 3


def test_finds_a_function_in_a_package():
    assert import_factory("os.path:join", where="model.name")("a", "b") == "a/b"


def test_finds_a_method_of_a_class(module):
    module(
        "class Data:\n    @classmethod\n    def make(cls, a):\n        return cls, a\n    class Inner: pass\n"
    )
    factory = import_factory("users_data:Data.make", where="data.source")
    assert factory(3)[0] is sys.modules["users_data"].Data
    assert import_factory("users_data:Data.Inner", where="data.source").__name__ == "Inner"
    assert refused("users_data:Data.mak") == "data.source: users_data:Data has no 'mak'; did you mean make?"
    assert "users_data:Data.make has no 'x'" in refused("users_data:Data.make.x.y")


def test_finds_what_is_built_in():
    assert import_factory("builtins:dict.fromkeys", where="model.name")("a") == {"a": None}
    assert "builtins (built in) has no 'dcit'; did you mean dict" in refused("builtins:dcit")


def test_missing_module_tells_where_it_was_looked_for(tmp_path, module):
    message = refused("no_such_module:make")
    assert f"no module 'no_such_module'; looked in {tmp_path}" in message
    assert "site-packages" not in message
    assert "PYTHONPATH" in message


def test_missing_submodule(module):
    assert "no module 'os.no_such'" in refused("os.no_such:make")


def test_a_module_that_misses_another_one(module):
    path = module("import os\nimport no_such_library\n")
    message = refused("users_data:make")
    assert (
        "importing users_data failed with ModuleNotFoundError: No module named 'no_such_library'" in message
    )
    assert f"({path}:2)" in message


def test_a_module_that_fails(module):
    path = module("x = 1\n\nraise RuntimeError('no licence')\n")
    assert f"failed with RuntimeError: no licence ({path}:3)" in refused("users_data:make")


def test_a_module_with_a_syntax_error(module):
    path = module("def make(:\n    pass\n")
    message = refused("users_data:make")
    assert "failed with SyntaxError: invalid syntax" in message
    assert f"({path}:1)" in message


def test_missing_name_tells_the_nearest(module):
    path = module("def make_data(): pass\n")
    assert f"users_data ({path}) has no 'make_dat'; did you mean make_data?" in refused("users_data:make_dat")
    assert refused("users_data:zzz").endswith("has no 'zzz'")


def test_no_callable(module):
    module("make = 3\n")
    assert "users_data:make is of type int; legal: a callable" in refused("users_data:make")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "missing a required argument: 'root'"),
        ({"root": 1, "sise": 2}, "got an unexpected keyword argument 'sise'"),
    ],
)
def test_arguments_that_do_not_fit(args, said):
    def make(root: str, size: "int" = 3) -> None: ...

    with pytest.raises(InputError) as caught:
        call_factory(make, args, spec="m:make", where="data.args")
    assert str(caught.value) == f"data.args: m:make {said}; legal: m:make(root, size=3)"


def test_a_type_error_inside_the_factory_is_the_factorys_own():
    def make():
        return len(3)

    with pytest.raises(TypeError, match="has no len"):
        call_factory(make, {}, spec="m:make", where="data.args")


def test_callables_without_a_signature():
    assert call_factory(dict, {"a": 1}, spec="m:dict", where="data.args") == {"a": 1}
    assert call_factory(partial(int, "5"), {}, spec="m:int", where="data.args") == 5


def test_find_module_imports_nothing(module):
    module("raise SystemExit\n")
    find_module("users_data.part", where="data.source")
    assert "users_data" not in sys.modules
    with pytest.raises(InputError, match="no module 'no_such_module'"):
        find_module("no_such_module.part", where="data.source")
