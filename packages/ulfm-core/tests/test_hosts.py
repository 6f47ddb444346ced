"""Several hosts on one machine: network namespaces, each with its own hostname and address."""

import os
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ulfm_core.testing import JobResult, run_ranks

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

BRIDGE = "ulfmtest"
HERE = "10.77.0.1"
HOSTS = {"10.77.0.2": "ulfm-a", "10.77.0.3": "ulfm-b"}

# What ssh is elsewhere. A host with a file of its name in the folder is down.
AGENT = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
case $1 in 10.77.0.2) name=ulfm-a ;; 10.77.0.3) name=ulfm-b ;; *) name=$1 ;; esac
shift
[ -e FOLDER/$name ] && exit 255
export COMMAND="$*"
exec ip netns exec $name unshare --uts bash -c "hostname $name; eval \\"\\$COMMAND\\""
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


def take_down() -> None:
    for words in (["netns", "del", name] for name in HOSTS.values()):
        subprocess.run(["ip", *words], check=False, capture_output=True, timeout=10)
    down = ["ip", "link", "del", BRIDGE]
    subprocess.run(down, check=False, capture_output=True, timeout=10)


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs root, iproute2 and util-linux for network namespaces")
    take_down()
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{HERE}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for address, name in HOSTS.items():
            ip("netns", "add", name)
            ip("link", "add", f"v{name}", "type", "veth", "peer", "name", "e0", "netns", name)
            ip("link", "set", f"v{name}", "master", BRIDGE, "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "e0")
            ip("-n", name, "link", "set", "e0", "up")
            ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        take_down()
        pytest.skip(f"no network namespaces here: {error.stderr!r}")
    yield
    take_down()


def run_on_hosts(folder: Path, program: str, *options: str) -> JobResult:
    agent = folder / "agent"
    agent.write_text(AGENT.replace("FOLDER", str(folder)))
    agent.chmod(0o755)
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    hosts = ",".join(f"{address}:2" for address in HOSTS)
    # PRRTE warns of, and stumbles over, agents that start daemons on behalf of other daemons.
    direct = "--mpi-arg=--mca plm_rsh_no_tree_spawn 1"
    fixed = ["--hosts", hosts, "--rsh", str(agent), "--replica-size", "2", direct]
    return run_ranks(script, 4, options=[*fixed, *options])


@pytest.mark.usefixtures("network")
def test_a_rank_dies_on_another_host(tmp_path: Path) -> None:
    job = run_on_hosts(
        tmp_path,
        """
        import os, signal
        from mpi4py import MPI
        from ulfm_core.testing import say

        names = (
            "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "ULFM_REPLICA", "ULFM_HOST"
        )
        say(host=os.uname().nodename, **{name: os.environ[name] for name in names})
        world = MPI.COMM_WORLD
        world.Set_errhandler(MPI.ERRORS_RETURN)
        try:
            world.Barrier()
            if world.rank == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                world.Barrier()
        except MPI.Exception:
            world.Revoke()
        say(survivors=world.Shrink().allreduce(1))
        """,
    )
    assert job.returncode == 0, job.stderr
    assert "3 of 4 ranks finished; lost: rank 3" in job.stderr
    assert [job.lines[rank][1] for rank in range(3)] == [{"survivors": 3}] * 3
    assert [job.lines[rank][0]["host"] for rank in range(4)] == ["ulfm-a"] * 2 + ["ulfm-b"] * 2
    assert job.lines[2][0] == {
        "host": "ulfm-b",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.77.0.3",
        "ULFM_REPLICA": "1",
        "ULFM_HOST": "10.77.0.3",
    }


@pytest.mark.usefixtures("network")
def test_a_whole_host_dies_and_the_job_starts_again_without_it(tmp_path: Path) -> None:
    job = run_on_hosts(
        tmp_path,
        f"""
        import os, pathlib, signal, time
        from mpi4py import MPI
        from ulfm_core.testing import say

        say(restart=os.environ["ULFM_RESTART"], initial=os.environ["ULFM_INITIAL_WORLD_SIZE"])
        MPI.COMM_WORLD.Barrier()
        if os.environ["ULFM_RESTART"] == "0":
            if MPI.COMM_WORLD.rank == 3:
                pathlib.Path({str(tmp_path)!r}, "ulfm-b").touch()
                os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        """,
        "--max-restarts",
        "2",
    )
    assert job.returncode == 0, job.stderr
    assert job.lines[0] == [{"restart": str(k), "initial": "4"} for k in (0, 1)]
    assert job.lines[3] == [{"restart": "0", "initial": "4"}]
    assert "10.77.0.3 does not answer" in job.stderr
    assert "restart 1 of 2 with 2 of 4 ranks" in job.stderr
