import ast
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import ulfm_core
from ulfm_core import NotLaunchedError, environment

SOURCES = Path(ulfm_core.__file__).parent
NAMES: dict[str, str] = {
    name: value
    for name, value in vars(environment).items()
    if name.isupper() and not name.startswith("_")
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES.values():
        monkeypatch.setenv(name, "")  # put back at the end, also what a test sets
        monkeypatch.delenv(name)


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield every string of a module that is not its documentation."""
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in documentation:
            continue
        if isinstance(node.value, str):
            yield node.value


def test_a_variable_is_named_here_and_nowhere_else() -> None:
    named = [
        (str(path.relative_to(SOURCES)), text)
        for path in SOURCES.rglob("*.py")
        if path.name != "environment.py"
        for text in texts(ast.parse(path.read_text()))
        if any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in NAMES.values())
        or re.search(r"\b(ULFM|ULFMRUN|OMPI|SLURM|PMIX)_[A-Z]", text)
    ]
    assert named == []


def test_constants_are_spelled_like_their_variables() -> None:
    assert len(NAMES) > 25
    assert all(value.upper() == name for name, value in NAMES.items())
    assert NAMES.keys() <= set(environment.__all__)


def test_outside_of_a_job() -> None:
    assert not environment.is_rank()
    for ask in (
        environment.rank,
        environment.size,
        environment.local_rank,
        environment.local_size,
        environment.initial_size,
        environment.master_port,
    ):
        with pytest.raises(NotLaunchedError, match="ulfmrun"):
            ask()
    assert environment.restart() == 0
    assert environment.replica_size() is None
    assert environment.hosts() == ()
    assert environment.host() == socket.gethostname()
    assert environment.channel() is None
    assert environment.slurm_nodes() is None
    assert environment.testing_folder() is None
    assert environment.visible_devices() == ()
    assert not environment.fault_tolerant()


def set_all(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_rank_of_a_plain_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(
        monkeypatch,
        {
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            "OMPI_MCA_mpi_ft_enable": "true",
        },
    )
    assert environment.is_rank()
    assert (environment.rank(), environment.size()) == (5, 8)
    assert (environment.local_rank(), environment.local_size()) == (1, 4)
    assert environment.initial_size() == 8
    assert environment.fault_tolerant()


@pytest.mark.parametrize(("uid", "threads"), [(0, None), (1000, None), (1000, "3")])
def test_what_ulfmrun_says_is_read_as_it_was_meant(
    monkeypatch: pytest.MonkeyPatch, uid: int, threads: str | None
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    variables = environment.for_ranks(
        initial_size=6,
        restart=2,
        master_port=15001,
        threads=4,
        replica_size=2,
        hosts=[("a", 1), ("b", 3)],
    )
    assert variables.get("OMP_NUM_THREADS") == (None if threads else "4")
    assert variables.get("OMPI_ALLOW_RUN_AS_ROOT") == (None if uid else "1")
    assert variables["ULFM_HOSTS"] == "a:1,b:3"
    set_all(monkeypatch, variables)
    assert environment.initial_size() == 6
    assert environment.restart() == 2
    assert environment.master_port() == 15001
    assert environment.replica_size() == 2
    assert environment.hosts() == ("a", "b", "b", "b")


def test_what_programs_of_a_rank_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    environment.set_torch_world(rank=1, world_size=2, address="10.0.0.1", port=29500)
    environment.set_local(rank=3, size=4)
    environment.set_seat(replica=1, position=0)
    environment.set_host("b")
    environment.set_visible_devices(["2", "GPU-5f"])
    assert {name: value for name, value in os.environ.items() if name in NAMES} == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "4",
        "ULFM_REPLICA": "1",
        "ULFM_POSITION": "0",
        "ULFM_HOST": "b",
        "CUDA_VISIBLE_DEVICES": "2,GPU-5f",
    }
    environment.set_local(rank=0)
    assert os.environ["LOCAL_WORLD_SIZE"] == "4"
    assert environment.visible_devices() == ("2", "GPU-5f")
    assert environment.host() == "b"
    monkeypatch.setenv("OMPI_MCA_coll_ftagree_agreement", "2")
    environment.set_agreement()
    assert os.environ[environment.OMPI_MCA_COLL_FTAGREE_AGREEMENT] == "2"


def test_only_the_standard_library_is_needed() -> None:
    code = (
        "import sys; import ulfm_core.environment;"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(done.stdout.split()) <= {"ulfm_core", "__main__", "sitecustomize"}
