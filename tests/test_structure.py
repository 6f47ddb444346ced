"""How the code is laid out: who imports whom, and how long anything may be.

Read from the sources, with nothing of ours imported: the lint session runs this alone. An import
for type checking counts like any other, as whoever reads one module has to know the other.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULE_LINES, CLASS_LINES = 500, 250

# Lower ones first. A row may import what stands above it here, and nothing of its own row.
BELOW = [{"workload_policy", "ulfm_core"}, {"spare_planner", "grad_txn"}]
INTEGRATIONS = {path.parent.name for path in ROOT.glob("packages/*/src/*/__init__.py")}.difference(
    *BELOW
)
PACKAGES = [*BELOW, INTEGRATIONS]

# The rooms of grad_txn, in the same way: a name stands for the module and all that is in it.
ROOMS = [
    {"errors"},
    {"log", "lazily", "passes"},
    {"failures", "verify", "report"},
    {"gradients", "communicator", "sums", "plain_calls"},
    {"staging", "reserve", "records", "replica", "fingerprint", "start", "notes", "reduction"},
    {"sameness", "checkpoint"},
    {"parts"},
    {"commit", "recovery"},
    {"step", "between"},
    {"job"},
    {"programs", "testing"},
    {""},  # the package itself, whose names come from everywhere
]

# What a laptop cannot be asked to install is not for these.
LIGHT = (
    "grad_txn.errors",
    "grad_txn.log",
    "grad_txn.failures",
    "grad_txn.verify",
    "grad_txn.report",
)
HEAVY = {"torch", "mpi4py", "ulfm_core"}

Imports = Mapping[str, set[str]]


def sources(root: Path) -> dict[str, Path]:
    """Return module -> file, of all packages."""
    found = {}
    for source in root.glob("packages/*/src"):
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Yield what a file imports, wherever it stands: of ``from a import b`` it is ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: write the whole name of the module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_among(modules: Mapping[str, Path]) -> Imports:
    """Return module -> those of these modules that it imports; an attribute counts as its module.

    A compiled module has no source here. It and whoever imports it are no circle.
    """
    compiled = {"ulfm_core._core"}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        targets = found.setdefault(module, set())
        for name in imported(path):
            target = name
            while target and target not in modules and target not in compiled:
                target = target.rpartition(".")[0]
            targets.add(target)
        targets -= {"", module, *compiled}
    return found


def circle(imports: Imports) -> Sequence[str]:
    """Return modules that import each other, the first again at the end; or nothing."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: Sequence[str] = error.args[1]
        return found
    return ()


def row_of(rows: Sequence[set[str]], name: str) -> int:
    """Return where a name stands; whatever is new has to be given a place."""
    found = [index for index, row in enumerate(rows) if name in row]
    assert found, f"{name} has no place in tests/test_structure.py: say what it stands upon"
    return found[0]


def climbing(imports: Imports, rows: Sequence[set[str]], depth: int) -> list[str]:
    """Return the imports that do not lead to a lower row.

    Args:
        imports: Of modules that all have a place.
        rows: Lower ones first.
        depth: Which part of a module's name stands in them.
    """

    def place(module: str) -> str:
        return "".join(module.split(".")[depth : depth + 1])

    return [
        f"{module} imports {target}"
        for module, targets in sorted(imports.items())
        for target in sorted(targets)
        if place(module) != place(target)
        and row_of(rows, place(module)) <= row_of(rows, place(target))
    ]


def too_long(modules: Mapping[str, Path]) -> list[str]:
    """Return what is longer than it may be."""
    found = []
    for path in modules.values():
        text = path.read_text()
        lines = len(text.splitlines())
        if lines > MODULE_LINES:
            found.append(f"{path}: {lines} lines, {MODULE_LINES} are allowed")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > CLASS_LINES:
                    found.append(f"{path}: {node.name}: {lines} lines, {CLASS_LINES} are allowed")
    return found


MODULES = sources(ROOT)
IMPORTS = imports_among(MODULES)


def test_all_packages_are_read() -> None:
    assert {module.partition(".")[0] for module in MODULES} == set().union(*PACKAGES)


def test_no_import_circle() -> None:
    assert not circle(IMPORTS)


def test_no_package_imports_a_higher_one() -> None:
    assert not climbing(IMPORTS, PACKAGES, depth=0)


def test_no_room_of_grad_txn_imports_a_higher_one() -> None:
    own = {module for module in IMPORTS if module.partition(".")[0] == "grad_txn"}
    assert not climbing({module: IMPORTS[module] & own for module in own}, ROOMS, depth=1)


def test_every_room_is_there() -> None:
    rooms = {"".join(module.split(".")[1:2]) for module in IMPORTS if module.startswith("grad_txn")}
    assert rooms == set().union(*ROOMS)


def test_what_a_laptop_runs_imports_neither_torch_nor_mpi() -> None:
    heavy = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if any(f"{module}.".startswith(f"{light}.") for light in LIGHT)
        for name in imported(path)
        if name.partition(".")[0] in HEAVY
    ]
    assert not heavy


def test_no_module_and_no_class_is_too_long() -> None:
    assert not too_long(MODULES)


# ------------------------------------------------------------------------- what these checks find


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    source = tmp_path / "packages" / "some" / "src" / "some"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "low.py").write_text("VALUE = 1\n")
    (source / "high.py").write_text("from some import low\n")
    return source


def test_an_import_for_type_checking_can_close_a_circle(tree: Path) -> None:
    assert not circle(imports_among(sources(tree.parents[3])))
    (tree / "low.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from some.high import Thing\n"
    )
    found = circle(imports_among(sources(tree.parents[3])))
    assert sorted(set(found)) == ["some.high", "some.low"]


def test_an_import_of_a_higher_one_is_found(tree: Path) -> None:
    imports = imports_among(sources(tree.parents[3]))
    assert not climbing(imports, [{"low"}, {"high"}, {""}], depth=1)
    found = climbing(imports, [{"high"}, {"low"}, {""}], depth=1)
    assert found == ["some.high imports some.low"]


def test_what_has_no_place_is_found(tree: Path) -> None:
    with pytest.raises(AssertionError, match="high has no place"):
        climbing(imports_among(sources(tree.parents[3])), [{"low"}], depth=1)


def test_what_is_too_long_is_found(tree: Path) -> None:
    (tree / "low.py").write_text("class Long:\n" + "    x = 1\n" * CLASS_LINES)
    (tree / "high.py").write_text("X = 1\n" * (MODULE_LINES + 1))
    found = too_long(sources(tree.parents[3]))
    assert sorted(line.partition(": ")[2] for line in found) == [
        "501 lines, 500 are allowed",
        "Long: 251 lines, 250 are allowed",
    ]
