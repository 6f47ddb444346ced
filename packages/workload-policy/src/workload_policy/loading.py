"""The one door to a policy: by name, from a module, or from a file."""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from workload_policy.errors import PolicyError, WorkloadPolicyError
from workload_policy.policies.in_order import InOrder
from workload_policy.policy import Policy
from workload_policy.policy_file import read_policy_file
from workload_policy.promise import Promise
from workload_policy.registry import POLICY_NAMES, maker_named

__all__ = ["load_policy"]

_METHODS = ("layout", "start", "on_failure", "advance", "relayout")


def load_policy(spec: str, **options: Any) -> Policy:
    """Return the policy that a command line's ``--policy`` names.

    Every rank loads its policy by itself. The same name, or the same text of a file, gives policies
    that decide alike.

    >>> load_policy("exact").promise
    <Promise.EXACT: 'exact'>

    Args:
        spec: ``NAME``, one of this package or of an entry point in the group `POLICY_GROUP`, which
            names what ``module:NAME`` may name; ``module:NAME``, an importable module and in it a
            policy, a policy class, or a callable that returns a policy; or ``FILE.py``, a file of
            functions or with one class, see `workload_policy.policy_file`.
        options: What the policy's class or callable takes.

    Raises:
        PolicyError: There is no such policy, it takes no such options, or it is none; one line that
            says what to change.
    """
    if spec.endswith(".py"):
        found = read_policy_file(Path(spec))
    elif ":" in spec:
        found = _from_module(spec)
    elif Path(f"{spec}.py").is_file() and spec not in POLICY_NAMES:
        raise PolicyError(f"{spec!r} is a file here: give it as {spec}.py")
    else:
        found = maker_named(spec)
    policy = _made(spec, found, options) if callable(found) else found
    if policy is found and options:
        raise PolicyError(
            f"policy {spec!r} does not take options: {', '.join(sorted(options))} cannot be set"
        )
    _check_policy(spec, policy)
    return cast("Policy", policy)


def _from_module(spec: str) -> Any:
    """Return what a ``module:NAME`` names."""
    module_name, _, path = spec.partition(":")
    if not module_name or not path:
        raise PolicyError(f"policy {spec!r} is not module:NAME, such as mypackage.policies:Mine")
    if module_name.endswith(".py") or "/" in module_name:
        raise PolicyError(f"policy {spec!r}: give a file alone, FILE.py, and a module by its name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_failed(spec, module_name, error) from error
        raise PolicyError(
            f"policy {spec!r}: there is no module {error.name!r} on the Python path; install it,"
            " add its folder to PYTHONPATH, or give a FILE.py"
        ) from None
    except Exception as error:
        raise _import_failed(spec, module_name, error) from error
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            policies = [key for key, value in vars(module).items() if _looks_like_one(value)]
            hint = f"; it has {', '.join(policies)}" if policies else ""
            raise PolicyError(
                f"policy {spec!r}: {module_name} ({_file(module)}) has no {path!r}{hint}"
            )
        found = getattr(found, name)
    return found


def _import_failed(spec: str, module: str, error: Exception) -> PolicyError:
    return PolicyError(
        f"policy {spec!r}: importing {module} fails with {type(error).__name__}: {_line(error)}"
    )


def _made(spec: str, make: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Call what makes a policy."""
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise PolicyError(f"policy {spec!r} does not take these options: {error}") from None
    except ValueError:  # some callables written in C do not tell
        pass
    try:
        return make(**options)
    except WorkloadPolicyError:
        raise
    except Exception as error:
        raise PolicyError(
            f"policy {spec!r} cannot be made: {type(error).__name__}: {_line(error)}"
        ) from error


def _check_policy(spec: str, policy: Any) -> None:
    """Check that this is a policy, under a name of its own.

    Raises:
        PolicyError: It is not.
    """
    missing = [name for name in _METHODS if not callable(getattr(policy, name, None))]
    if missing:
        raise PolicyError(
            f"policy {spec!r} is {_kind(policy)}, not a policy: it has no {missing[0]}(); derive"
            " from workload_policy.InOrder, or write all of workload_policy.Policy"
        )
    name, promise = getattr(policy, "name", None), getattr(policy, "promise", None)
    if not isinstance(name, str) or not name:
        raise PolicyError(f"policy {spec!r} has the name {name!r}: give it a name of its own")
    if name in POLICY_NAMES and type(policy) is not maker_named(name):
        raise PolicyError(
            f"policy {spec!r} has the name {name!r} of another policy: give it a name of its own"
        )
    if not isinstance(promise, Promise):
        raise PolicyError(
            f"policy {spec!r} has the promise {promise!r}: choose one of workload_policy.Promise,"
            f" {', '.join(Promise)}"
        )


def _looks_like_one(value: Any) -> bool:
    kind = value if isinstance(value, type) else type(value)
    return kind is not InOrder and all(callable(getattr(kind, name, None)) for name in _METHODS)


def _kind(value: Any) -> str:
    return f"{value!r:.60} of type {type(value).__name__}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _file(module: Any) -> str:
    return getattr(module, "__file__", None) or "built in"
