"""Finds and calls a user's ``package.module:factory``, with errors that say what is wrong."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from hvdtrain.errors import InputError


def import_factory(spec: str, *, where: str) -> Callable[..., Any]:
    """Imports ``package.module:name`` or ``package.module:Class.method`` and returns the callable.

    Args:
        spec: As in the job file. The module is looked for along ``sys.path``.
        where: The key of the job file that ``spec`` stands at, for messages.

    Raises:
        InputError: The module or the name in it does not exist, the module fails while it is
            imported, or the name is no callable.
    """
    module_name, _, path = spec.partition(":")
    module = _imported(module_name, where)
    factory: Any = module
    holder = f"{module_name} ({_file(module)})"
    names = path.split(".")
    for depth, name in enumerate(names, 1):
        factory = _attribute(factory, name, holder, where)
        holder = f"{module_name}:{'.'.join(names[:depth])}"
    if not callable(factory):
        raise InputError(f"{spec} is of type {type(factory).__name__}", where=where, legal="a callable")
    return factory  # type: ignore[no-any-return]


def call_factory(factory: Callable[..., Any], args: Mapping[str, Any], *, spec: str, where: str) -> Any:
    """Calls a factory; what it raises itself is left as it is.

    Raises:
        InputError: ``args`` do not fit its parameters; ``where`` is their key in the job file.
    """
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some callables written in C tell no signature
        return factory(**args)
    try:
        signature.bind(**args)
    except TypeError as error:
        raise InputError(f"{spec} {error}", where=where, legal=f"{spec}{_plain(signature)}") from None
    return factory(**args)


def _plain(signature: inspect.Signature) -> inspect.Signature:
    """Names and defaults alone: annotations would hide them."""
    empty = inspect.Signature.empty
    names = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    return signature.replace(parameters=names, return_annotation=empty)


def find_module(module_name: str, *, where: str) -> None:
    """Checks without importing anything that the top package of a module can be found.

    Raises:
        InputError: It cannot.
    """
    top = module_name.partition(".")[0]
    if top not in sys.modules and find_spec(top) is None:
        raise _not_found(top, where)


def _attribute(owner: Any, name: str, shown: str, where: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        public = [known for known in dir(owner) if not known.startswith("_")]
        close = get_close_matches(name, public, n=3)
        do = f"did you mean {' or '.join(close)}?" if close else ""
        raise InputError(f"{shown} has no {name!r}", where=where, do=do) from None


def _imported(module_name: str, where: str) -> ModuleType:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise _not_found(missing, where) from None
        raise _broken(module_name, error, where) from error
    except Exception as error:  # whatever stands in the user's module
        raise _broken(module_name, error, where) from error


def _not_found(module_name: str, where: str) -> InputError:
    return InputError(
        f"no module {module_name!r}; looked in {', '.join(_searched())} and the installed packages",
        where=where,
        do="put it beside the job file, start in the folder that holds it or set PYTHONPATH",
    )


def _searched() -> list[str]:
    """The user's folders on ``sys.path``: all but Python's own and the one of its programs."""
    paths = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    paths |= {os.path.join(path, "lib-dynload") for path in paths}
    folders = [os.path.abspath(folder) for folder in sys.path if not folder.endswith(".zip")]
    return [folder for folder in dict.fromkeys(folders) if os.path.realpath(folder) not in paths]


def _broken(module_name: str, error: Exception, where: str) -> InputError:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        at = f" ({error.filename}:{error.lineno})"
    said = f": {text}" if (text := getattr(error, "msg", "") or str(error)) else ""
    return InputError(f"importing {module_name} failed with {type(error).__name__}{said}{at}", where=where)


def _file(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return str(Path(file)) if file else "built in"
