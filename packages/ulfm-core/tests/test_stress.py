"""Random SIGKILLs from outside, at any moment. As a program: python test_stress.py SEED RUNS."""

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ulfm_core.testing import JobResult, run_ranks

PROGRAM = Path(__file__).parent / "programs" / "endless.py"
RANKS = 6

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


def strike(seed: int) -> tuple[set[int], set[int], JobResult]:
    """Run a job and kill ranks of it; return who should and who did survive, and all it said."""
    dice = random.Random(seed)
    size = dice.choice([1, 1, 1, 2, 3])
    victims = dice.sample(range(RANKS), dice.choice([1, 1, 2, 2, 3]))
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as pool:
        elements = dice.choice([1000, 100_000, 1_000_000])
        arguments = [name, str(size), str(elements), "1.0"]
        job = pool.submit(run_ranks, PROGRAM, RANKS, arguments, timeout=60)
        while len(list(Path(name).glob("*.pid"))) < RANKS and not job.done():
            time.sleep(0.01)
        time.sleep(dice.random() * 0.6)
        for victim in victims if not job.done() else ():
            pid = int(Path(name, f"{victim}.pid").read_text())
            with contextlib.suppress(ProcessLookupError):  # the guard was quicker
                os.kill(pid, signal.SIGKILL)
            time.sleep(dice.choice([0, 0.001, 0.003, 0.01, 0.1]))
        result = job.result()
    survived = {rank for rank, lines in result.lines.items() if "done" in lines[-1]}
    lost = {
        victim // size for victim in victims if victim not in survived
    }  # not if struck too late
    expected = {rank for rank in range(RANKS) if rank // size not in lost}
    return expected, survived, result


@pytest.mark.parametrize("seed", range(8))
def test_survivors_finish(seed: int) -> None:
    expected, survived, job = strike(seed)
    assert survived == expected, job.stderr
    assert job.returncode == (0 if expected else 1), job.stderr


def main(first: int, runs: int) -> None:
    """Strike again and again, and count."""
    bad = {"hung": 0, "lost more": 0, "other": 0}
    for seed in range(first, first + runs):
        try:
            expected, survived, job = strike(seed)
        except (TimeoutError, OSError) as error:
            bad["hung" if isinstance(error, TimeoutError) else "other"] += 1
            print(f"seed {seed}: {error}", flush=True)
            continue
        if survived != expected:
            bad["lost more" if survived < expected else "other"] += 1
            print(f"seed {seed}: {survived} instead of {expected}\n{job.stderr}", flush=True)
    print(f"{runs} runs from seed {first}: {bad}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
