"""A policy that somebody wrote as one file, ``FILE.py``.

The file is a few pure functions. Any of these, at least one:

* ``layout(*, replicas, grad_accum, survivors) -> Layout``
* ``quotas(layout, roles) -> {member: microbatches in a step}``
* ``respond(plan, failed, roles) -> Response``

They are what `InOrder` calls its methods, which says more of each. Beside them may stand

* ``base``, the name of the policy whose functions are taken where the file has none; ``"static"``
* ``promise``, ``"exact"``, ``"batch"`` or ``"none"``; ``"batch"``, or ``"none"`` where what comes
  from the base cannot keep the batch
* ``name``, by which plans and messages call it; the file's name without ``.py``

Or the file defines exactly one class derived from `InOrder`, which says all of that itself.

A file is run once in a process as long as its text is the same, so loading it again gives an equal
policy.
"""

import hashlib
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from workload_policy.errors import PolicyError
from workload_policy.policies.from_functions import FromFunctions
from workload_policy.policies.in_order import InOrder
from workload_policy.promise import Promise
from workload_policy.registry import maker_named

__all__ = ["read_policy_file"]

# How each function is called: positional arguments, and keywords.
_CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "layout": ((), ("replicas", "grad_accum", "survivors")),
    "quotas": (("layout", "roles"), ()),
    "respond": (("plan", "failed", "roles"), ()),
}
_VALUES = ("base", "promise", "name")

_running = threading.RLock()  # a file may load another


def read_policy_file(path: Path) -> InOrder | Callable[..., InOrder]:
    """Return the policy that a file makes of its functions, or the policy class in it.

    Raises:
        PolicyError: It cannot be read or run, or what is in it does not make a policy.
    """
    module = _run(path)
    functions = {name: vars(module)[name] for name in _CALLS if name in vars(module)}
    classes = [value for value in vars(module).values() if _is_policy_class(value, module)]
    if classes:
        return _only_class(path, module, classes, functions)
    if not functions:
        _fail(path, f"it defines none of {_calls()}, and no class derived from InOrder")
    for name, function in functions.items():
        _check_call(path, name, function)
    base = _base(path, getattr(module, "base", "static"))
    strongest = _strongest(base, functions)
    return FromFunctions(
        name=_name(path, getattr(module, "name", path.stem)),
        promise=_promise(path, getattr(module, "promise", None), base, strongest),
        base=base,
        functions=functions,
        file=str(path),
    )


def _run(path: Path) -> ModuleType:
    """Return the module that the file is, run before or now."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        _fail(path, f"there is no such file in {path.absolute().parent}")
    except (OSError, UnicodeDecodeError) as error:
        _fail(path, f"it cannot be read: {error}", error)
    absolute = path.resolve()
    digest = hashlib.sha256(f"{absolute}\n{text}".encode()).hexdigest()
    name = f"policy_file_{digest[:16]}"
    with _running:
        if name in sys.modules:
            return sys.modules[name]
        try:
            code = compile(text, str(absolute), "exec", dont_inherit=True)
        except SyntaxError as error:
            _fail(path, f"line {error.lineno} is not Python: {error.msg}", error)
        except ValueError as error:  # a null byte
            _fail(path, f"it is not Python: {error}", error)
        module = ModuleType(name)
        module.__file__ = str(absolute)
        sys.modules[name] = module  # dataclasses and pickle look their module up
        try:
            exec(code, vars(module))  # noqa: S102 - the user's own file, which they ask us to run
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told with its line
            del sys.modules[name]
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == str(absolute)
            ]
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            _fail(path, f"line {lines[-1] if lines else 1} fails with {why}", error)
        return module


def _is_policy_class(value: Any, module: ModuleType) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, InOrder)
        and value.__module__ == module.__name__
    )


def _only_class(
    path: Path, module: ModuleType, classes: list[type[InOrder]], functions: dict[str, Any]
) -> type[InOrder]:
    """Return the one policy class of a file."""
    names = ", ".join(cls.__name__ for cls in classes)
    if len(classes) > 1:
        _fail(path, f"it defines {len(classes)} policies, {names}: leave one in it")
    beside = [*functions, *(n for n in _VALUES if isinstance(vars(module).get(n), str))]
    if beside:
        _fail(path, f"it has {beside[0]!r} beside the class {names}: move it into the class")
    (cls,) = classes
    if "name" not in vars(cls):  # that of the class it derives from is another policy's
        cls.name = path.stem
    return cls


def _check_call(path: Path, name: str, function: Any) -> None:
    """Check that a function can be called as it will be."""
    positional, keywords = _CALLS[name]
    form = ", ".join([*positional, *(["*"] if keywords else []), *keywords])
    if not callable(function):
        _fail(path, f"{name} is {function!r}, not a function: write def {name}({form})")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some callables written in C do not tell
        return
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        _fail(path, f"{name}{signature} cannot be called as {name}({form}): {error}")


def _base(path: Path, name: Any) -> InOrder:
    if not isinstance(name, str):
        _fail(path, f"base is {name!r}: give the name of a policy, such as 'static'")
    try:
        made = maker_named(name)()
    except PolicyError as error:
        _fail(path, f"base is {name!r}: {error}", error)
    if not isinstance(made, InOrder):
        _fail(path, f"base is {name!r}, which has no such functions: choose 'static' or 'exact'")
    return made


def _strongest(base: InOrder, functions: dict[str, Any]) -> Promise:
    """Return the most that such a policy can promise.

    Whether exact steps come out depends on what the functions return, and is checked in every step.
    """
    whole = "layout" in functions and "respond" in functions
    return Promise.EXACT if whole or base.promise is not Promise.NONE else Promise.NONE


def _promise(path: Path, value: Any, base: InOrder, strongest: Promise) -> Promise:
    if value is None:
        return Promise.NONE if strongest is Promise.NONE else Promise.BATCH
    try:
        promise = Promise(value)
    except ValueError:
        _fail(path, f"promise is {value!r}: choose from {', '.join(Promise)}")
    if strongest is Promise.NONE and promise is not Promise.NONE:
        _fail(
            path,
            f"promise is {value!r}, which base {base.name!r} cannot hold: choose 'none', another"
            " base, or define both layout and respond",
        )
    return promise


def _name(path: Path, value: Any) -> str:
    if not isinstance(value, str) or not value:
        _fail(path, f"name is {value!r}: give it a name of its own, or none")
    return value


def _calls() -> str:
    forms = []
    for name, (positional, keywords) in _CALLS.items():
        forms.append(f"{name}({', '.join([*positional, *(['*'] if keywords else []), *keywords])})")
    return ", ".join(forms)


def _fail(path: Path, why: str, cause: BaseException | None = None) -> NoReturn:
    raise PolicyError(f"policy file {path}: {why}") from cause
