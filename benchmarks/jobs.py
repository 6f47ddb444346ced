"""Benchmark jobs: a script starts itself under `ulfmrun`, and rank 0 hands back what was measured.

A figure of a busy machine means little alone. So one job holds all variants of what is compared,
they take turns, and what is told is the ratio of neighbours in time.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tables import quartiles

__all__ = ["RANKS", "command", "environment", "hand_back", "join_gloo", "run_job", "take_turns"]

RANKS = 4
_RESULT = "result.json"


def command(*arguments: str) -> list[str]:
    """Return the command that starts a program on four ranks.

    Args:
        arguments: Flags of `ulfmrun` if any, then the program and its own arguments.
    """
    return [sys.executable, "-m", "ulfm_core.launch", "-n", str(RANKS), *arguments]


def environment() -> dict[str, str]:
    """Return the environment of such a job: a rank computes with one thread, unless told else."""
    return {"OMP_NUM_THREADS": "1", **os.environ}


def run_job(
    script: str, settings: dict[str, Any], *, transport: str = "tcp", seconds: float = 900
) -> Any:
    """Run `script --job SETTINGS` on four ranks, and return what its rank 0 handed back.

    Args:
        script: The script's path.
        settings: Handed to it as JSON, with the name of a scratch folder as ``scratch``.
        transport: As for `ulfmrun`.
        seconds: When to give up and end all of the job.

    Raises:
        subprocess.CalledProcessError: The job failed.
        subprocess.TimeoutExpired: It took too long.
    """
    with tempfile.TemporaryDirectory() as scratch:
        job = json.dumps({**settings, "scratch": scratch})
        line = command("--transport", transport, script, "--job", job)
        with subprocess.Popen(line, env=environment(), start_new_session=True) as process:
            try:
                code = process.wait(seconds)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)  # ulfmrun ends its ranks
                raise
        if code:
            raise subprocess.CalledProcessError(code, line)
        return json.loads(Path(scratch, _RESULT).read_text())


def join_gloo(world: Any, settings: dict[str, Any]) -> None:
    """Start torch's process group of all ranks on gloo, each computing with one thread.

    Collective over the world.

    Args:
        world: An `ulfm_core.World`.
        settings: What `run_job` handed to the script.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{settings['scratch']}/store", RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=RANKS)


def hand_back(world: Any, settings: dict[str, Any], result: Any) -> None:
    """Tell `run_job` what rank 0 measured, and leave together. Collective over the world."""
    if world.rank == 0:
        Path(settings["scratch"], _RESULT).write_text(json.dumps(result))
    world.barrier().wait()


def take_turns(
    world: Any,
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    baseline: str,
    calls: int = 1,
    before: Callable[[], object] = lambda: None,
    after: Callable[[str], object] = lambda _: None,
) -> list[dict[str, Any]]:
    """Call the variants in turn, and return a row for each. Collective over the world.

    The time of a call is that from a barrier until the last rank has returned from it, its
    processor time that of all ranks together.

    Args:
        world: An `ulfm_core.World`.
        variants: Name -> what is compared.
        rounds: Counted turns of each; two more come before.
        baseline: Which of them the ratios are to, round by round.
        calls: Calls in a turn, which is their mean.
        before: Called before each of them, outside of the measured time.
        after: The same after each of them, with the variant's name.
    """
    everyone = world.subgroup(range(world.initial_size))
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in variants}
    warm_up = 2
    for number in range(rounds + warm_up):
        for name in _from(number, list(variants)):
            own, own_cpu = 0.0, 0.0
            for _ in range(calls):
                before()
                world.barrier(among=everyone).wait()
                begun, begun_cpu = time.perf_counter(), time.process_time()
                variants[name]()
                own += time.perf_counter() - begun
                own_cpu += time.process_time() - begun_cpu
                after(name)
            latest = _over_ranks(world, everyone, own / calls, "max")
            spent = _over_ranks(world, everyone, own_cpu / calls, "sum")
            if number >= warm_up:
                seconds[name].append(latest)
                cpu_seconds[name].append(spent)
    return [
        {
            "variant": name,
            "seconds": quartiles(seconds[name])[1],
            "cpu_seconds": quartiles(cpu_seconds[name])[1],
            "ratio": quartiles(_ratios(seconds[name], seconds[baseline])),
            "cpu_ratio": quartiles(_ratios(cpu_seconds[name], cpu_seconds[baseline]))[1],
        }
        for name in variants
    ]


def _from(number: int, names: list[str]) -> list[str]:
    """Whoever comes first finds the caches as the last one left them: it is another one's turn."""
    first = number % len(names)
    return names[first:] + names[:first]


def _over_ranks(world: Any, everyone: Any, value: float, op: str) -> float:
    import torch

    buffer = torch.tensor([value], dtype=torch.float64)
    world.all_reduce(buffer, op=op, among=everyone).wait()
    return float(buffer)


def _ratios(own: Sequence[float], base: Sequence[float]) -> list[float]:
    return [mine / other for mine, other in zip(own, base, strict=True)]
