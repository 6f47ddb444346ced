"""The validation loop that the READMEs show: the right loss and the right best, whoever dies."""

import re
from pathlib import Path

import pytest
import torch

from grad_txn.log.verify import verify
from ulfm_core.testing import run_ranks

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

PROGRAM = Path(__file__).parents[1] / "examples" / "validation.py"
README = Path(__file__).parents[2] / "grad-txn" / "README.md"
SAID = re.compile(r"^step (\d+) validation ([\d.]+) best \S*best-(\d+)\.pt$", re.MULTILINE)
# Rank 0 dies in the third validation, its part given and nothing agreed; rank 1, which leads then,
# dies in the note of the fifth, its file written. Rank 2 dies between two messages of a reduction,
# in the sixth or near it (repetitions count), so that some learn of it sooner than others.
KILLED = f"""
import os, runpy, signal, sys
from types import SimpleNamespace
from grad_txn import between
from grad_txn.reduction import Reduction

RANK = os.environ["OMPI_COMM_WORLD_RANK"]
calls = dict.fromkeys(("reduce", "note"), 0)

def dying(name, call, rank, number):
    def until_killed(*arguments):
        calls[name] += 1
        result = call(*arguments)
        if (RANK, calls[name]) == (rank, number):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return until_killed

def between_messages(attempt):
    def until_killed(reduction, members):
        if (RANK, calls["reduce"]) == ("2", 6):
            control = reduction._control
            def first(source, *, op, among):
                control.all_reduce(source, op=op, among=among).wait()
                os.kill(os.getpid(), signal.SIGKILL)
            reduction._control = SimpleNamespace(subgroup=control.subgroup, all_reduce=first)
        return attempt(reduction, members)
    return until_killed

Reduction.attempt = between_messages(Reduction.attempt)
Reduction.attempt = dying("reduce", Reduction.attempt, "0", 3)
between.told_by_the_leader = dying("note", between.told_by_the_leader, "1", 5)
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
"""
PLAIN = """
import sys
import torch
import torch.distributed as dist
import ulfm_core
from grad_txn import UsageError, replica_world

world = ulfm_core.init(replica_size=int(sys.argv[1]))
group = replica_world(world)
loss = torch.ones(1)
for plain in (lambda: dist.all_reduce(loss), dist.get_rank, dist.get_world_size, dist.barrier):
    try:
        plain()
    except UsageError as error:
        assert "without a group would mean this replica" in str(error)
    else:
        raise AssertionError(plain)
assert (dist.get_rank(group), dist.get_world_size(group)) == (world.position, int(sys.argv[1]))
dist.all_reduce(loss, group=group)
assert loss.item() == int(sys.argv[1])
"""


def test_it_is_right_with_and_without_deaths(tmp_path: Path) -> None:
    whole = run_ranks(PROGRAM, 5, [str(tmp_path / "whole")])
    assert whole.returncode == 0, whole.stderr
    expected = SAID.findall(whole.stdout)
    assert [int(step) for step, _, _ in expected] == list(range(8))
    losses = [float(loss) for _, loss, _ in expected]

    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    job = run_ranks(program, 5, [str(tmp_path / "lossy")])
    assert job.returncode == 0, job.stderr
    assert "lost: ranks 0, 1 and 2" in job.stderr
    said = SAID.findall(job.stdout)
    assert [int(step) for step, _, _ in said] == list(range(8))
    # Of the whole set each time, and not without the parts of the dead.
    assert [float(loss) for _, loss, _ in said] == pytest.approx(losses, rel=1e-5)
    bests = [int(best) for _, _, best in said]
    # The fifth was never noted, or noted by a rank that then died: either way all say the same.
    plain = [int(best) for _, _, best in expected]
    assert [b for i, b in enumerate(bests) if i != 4] == [b for i, b in enumerate(plain) if i != 4]
    assert bests[4] in (plain[3], plain[4])
    assert torch.load(tmp_path / "lossy" / f"best-{bests[-1]}.pt").keys()
    verdict = verify(tmp_path / "lossy")
    assert (verdict.problems, verdict.lost) == ((), ((0, 1, 2),))


@pytest.mark.parametrize("size", ["1", "2"])
def test_plain_calls_are_refused_in_a_real_job(size: str, tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text(PLAIN)
    job = run_ranks(program, 2, [size])
    assert job.returncode == 0, job.stderr


def test_the_readme_shows_the_program() -> None:
    shown = README.read_text().split("## Between the steps")[1].split("\n## ")[0]
    after = shown.split("After:")[1].split("```python\n")[1].split("```")[0]
    lines = [line.strip() for line in after.splitlines() if line.strip()]
    assert len(lines) > 20
    for line in lines:
        assert line in PROGRAM.read_text(), line
