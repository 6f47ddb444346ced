"""The FSDP2 script before and after: the same losses, and a replica fewer in the end."""

import re
from pathlib import Path

import pytest

from grad_txn.log.verify import verify
from ulfm_core.testing import run_ranks

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

EXAMPLES = Path(__file__).parents[1] / "examples"
README = Path(__file__).parents[1] / "README.md"
STEP = re.compile(r"^step (\d+) loss ([\d.]+)$", re.MULTILINE)
KILLED = """
import os, runpy, signal, sys
import torch
from grad_txn import Job
from grad_txn.step import Step

backward = Step.backward
def until_killed(step, loss):
    if step.number == 3 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    backward(step, loss)
Step.backward = until_killed

steps = Job.steps
def reducing(job, count):
    for step in steps(job, count):
        yield step
        reduced = job.reduce(torch.ones(1))  # over both ranks of each replica
        assert reduced.replicas == ((0, 1) if step.number < 3 else (1,))
        assert reduced.value.item() == 2 * len(reduced.replicas)
Job.steps = reducing
runpy.run_path({script!r}, run_name="__main__")
"""


def losses(said: str) -> dict[str, float]:
    return {step: float(loss) for step, loss in STEP.findall(said)}


def test_it_trains_as_before_and_survives_a_death(tmp_path: Path) -> None:
    before = run_ranks(EXAMPLES / "fsdp2_before.py", 4, [])
    assert before.returncode == 0, before.stderr
    expected = losses(before.stdout)
    assert list(expected) == [str(step) for step in range(8)]
    assert expected["7"] < 0.9 * expected["0"]

    after = run_ranks(EXAMPLES / "fsdp2_after.py", 4, [str(tmp_path / "whole")])
    assert after.returncode == 0, after.stderr
    assert losses(after.stdout) == pytest.approx(expected, rel=1e-5)

    program = tmp_path / "killed.py"
    program.write_text(KILLED.format(script=str(EXAMPLES / "fsdp2_after.py")))
    lossy = run_ranks(program, 4, [str(tmp_path / "lossy")])
    assert lossy.returncode == 0, lossy.stderr
    assert "lost: ranks 0 and 1" in lossy.stderr
    assert losses(lossy.stdout) == pytest.approx(expected, rel=1e-5)
    verdict = verify(tmp_path / "lossy")
    assert (verdict.problems, verdict.lost) == ((), ((0,),))


def test_the_readme_shows_the_scripts() -> None:
    shown = README.read_text()
    for line in re.findall(r"^([-+] .+)$", _block(shown, "```diff\n"), re.MULTILINE):
        name = "fsdp2_before.py" if line[0] == "-" else "fsdp2_after.py"
        assert line[2:].strip() in (EXAMPLES / name).read_text(), line


def _block(text: str, opening: str) -> str:
    start = text.index(opening) + len(opening)
    return text[start : text.index("```", start)]
