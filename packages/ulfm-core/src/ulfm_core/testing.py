"""Real jobs for tests: `run_ranks` starts one under `ulfmrun`, `say` is how its ranks answer.

```python
def test_survivors_finish(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("from ulfm_core.testing import say; say(hello='world')")
    assert run_ranks(program, 4).lines[3] == [{"hello": "world"}]
```
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulfm_core import environment
from ulfm_core.errors import UsageError

__all__ = ["JobResult", "run_ranks", "say"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult:
    """What came out of a job.

    Attributes:
        returncode: The exit code of `ulfmrun`.
        stdout: What all ranks printed, in the order in which it arrived.
        stderr: The same, with what `ulfmrun` said.
        lines: By rank, what it said with `say`, in order. Ranks that said nothing have no entry.
    """

    returncode: int
    stdout: str
    stderr: str
    lines: Mapping[int, Sequence[Mapping[str, Any]]]


def say(**fields: Any) -> None:
    """Add a line to what this rank hands to `run_ranks`. What was said survives a SIGKILL.

    Raises:
        UsageError: `run_ranks` has not started this job.
    """
    line = json.dumps(fields).encode() + b"\n"
    folder = environment.testing_folder()
    if folder is None:
        raise UsageError("say() is for the ranks of a job that run_ranks() has started")
    path = folder / f"{environment.rank()}.jsonl"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def run_ranks(
    program: Path | str,
    n: int,
    args: Sequence[str] = (),
    *,
    timeout: float = 60.0,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> JobResult:
    """Run a program on `n` ranks under `ulfmrun`, on this host.

    Args:
        program: A script, or the name of a module.
        n: The number of ranks.
        args: The program's arguments.
        timeout: Seconds until everything that was started is killed.
        options: Further options of `ulfmrun`.
        env: Variables to set on top of this process's.

    Raises:
        TimeoutError: The job did not end in time; says what it had printed.
    """
    start = [str(program)] if isinstance(program, Path) else ["-m", program]
    command = [sys.executable, "-m", "ulfm_core.launch", "-n", str(n), *options, *start, *args]
    with tempfile.TemporaryDirectory(prefix="ulfm-testing-") as name:
        folder = Path(name)
        # Files and not pipes: what a stray process holds open must not hold us up.
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            job = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, **(env or {}), environment.ULFM_TESTING_FOLDER: name},
                start_new_session=True,
            )
            try:
                job.wait(timeout)
                in_time = True
            except subprocess.TimeoutExpired:
                in_time = False
            finally:
                _end(job)
        result = JobResult(
            returncode=job.returncode,
            stdout=(folder / "stdout").read_text(errors="replace"),
            stderr=(folder / "stderr").read_text(errors="replace"),
            lines={int(file.stem): _read(file) for file in sorted(folder.glob("*.jsonl"))},
        )
    if not in_time:
        raise TimeoutError(
            f"{' '.join(command)} took longer than {timeout:g} s; it had printed\n"
            f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}\nand said {result.lines}"
        )
    return result


def _end(job: "subprocess.Popen[bytes]") -> None:
    if job.poll() is not None:
        return
    job.terminate()  # ulfmrun ends its ranks, within its bounds
    try:
        job.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)  # and with it, mpirun and the ranks get a signal
        job.wait()


def _read(file: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
