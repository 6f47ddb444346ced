"""Random failures against real jobs, for as long as told: `python tests/soak.py --out DIR`.

Every run draws a shape, a policy, a staging, a way to detect and a schedule of deaths; every other
run also has ranks killed from outside at a random moment. Outcomes:

* ok: those that were not killed finished, and the log proves the batch;
* extra lost: the same, but MPI took a survivor along and the others went on without it;
* not carried: nobody finished, although somebody should have;
* hang: it did not end within the bounds;
* wrong total, divergent: the log shows that;
* other: anything else.

Exit code 1 if there was a hang, a wrong total or a divergence, or if fewer than 99% were carried
through (ok or extra lost). Runs that are not ok keep their folder, stacks of a hang with it.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from jobs import Case, Run, Trainer, problems_of
from preload import Launched, Preloaded

from grad_txn.failures import Shape, generate

BOUND = 90.0
STEP_LIMIT = 20.0
BAD = ("hang", "wrong total", "divergent")


def draw(rng: random.Random) -> tuple[Case, int]:
    """Return a job with its planned deaths, and how many more come from outside."""
    shard_size = rng.choice((1, 1, 1, 2, 2, 3))
    replicas = rng.randint(3, 6) if shard_size == 1 else rng.randint(2, 6 // shard_size + 1)
    steps = rng.randint(6, 12)
    policy = rng.choice(("static", "static", "exact", "exact", "stacked", "stacked", "adaptive"))
    deaths = rng.randint(1, replicas - 1)
    redundancy = None
    if policy == "stacked":  # fewer deaths than copies of a type, or it may be a wipe-out
        redundancy = rng.randint(2, replicas)
        deaths = min(deaths, redundancy - 1)
    outside = rng.randint(0, min(2, deaths)) if rng.random() < 0.5 else 0
    kills = generate(
        Shape(replicas=replicas, replica_size=shard_size, steps=steps),
        seed=rng.getrandbits(30),
        count=deaths - outside,
    )
    case = Case(
        replicas=replicas,
        shard_size=shard_size,
        sharding=None if shard_size == 1 else rng.choice(("fsdp2", "fsdp2", "fsdp1")),
        batch=shard_size,
        grad_accum=rng.randint(1, 4),
        steps=steps,
        policy=policy,
        redundancy=redundancy,
        staging=rng.choice(("no-copy", "snapshot")),
        detection=rng.choice(("deferred", "guarded")),
        kills=kills,
    )
    return case, outside


def strike(job: Launched, case: Case, out: Path, count: int, rng: random.Random) -> set[int]:
    """Kill a rank of `count` replicas that no schedule names; return the replicas."""
    spared = {kill.replica for kill in case.kills}
    victims = rng.sample(sorted(set(range(case.replicas)) - spared), count)
    killed: set[int] = set()
    for victim in victims:
        delay = rng.uniform(0.0, 0.25)
        leader = victim * case.shard_size
        rank = leader + rng.randrange(case.shard_size)
        while job.running() and last_step(out, leader) < 0:
            time.sleep(0.005)
        time.sleep(delay)
        # Not in its last steps: it might have finished.
        if job.running() and last_step(out, leader) < case.steps - 3:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid_of(out, rank), signal.SIGKILL)
                killed.add(victim)
    return killed


def last_step(out: Path, rank: int) -> int:
    """Return the last step that a rank has committed, or -1."""
    try:
        return (out / "events" / f"{rank}.jsonl").read_text().count('"event": "step"') - 1
    except OSError:
        return -1


def pid_of(out: Path, rank: int) -> int:
    first = (out / "events" / f"{rank}.jsonl").read_text().splitlines()[0]
    return int(json.loads(first)["pid"])


def stacks(out: Path) -> str:
    """Return where every rank that is alive stands, if there is a tool that can tell."""
    told = []
    for file in sorted((out / "events").glob("*.jsonl")):
        for tool in (["py-spy", "dump", "--native", "--pid"], ["gstack"]):
            if shutil.which(tool[0]) is None:
                continue
            with contextlib.suppress(OSError, ValueError, IndexError, subprocess.TimeoutExpired):
                pid = str(pid_of(out, int(file.stem)))
                done = subprocess.run(
                    [*tool, pid], capture_output=True, text=True, timeout=20, check=False
                )
                told.append(f"rank {file.stem}:\n{done.stdout}{done.stderr}")
    return "\n".join(told)


def outcome_of(
    run: Run, reference: dict[int, tuple[float, float]], dead: set[int]
) -> tuple[str, list[str]]:
    # Whoever had written its last line when it was struck has finished all the same.
    finishers = {rank // run.case.shard_size for rank in run.finishers()}
    died = {line["replica"] for line in run.of("inject")} | (dead - finishers)
    problems = problems_of(run, reference, dead=died)
    text = "\n".join(problems)
    finished = run.finishers()
    if not problems:
        return "ok", []
    if "divergent" in text or "parameters differ" in text:
        return ("divergent" if finished else "not carried"), problems
    if not finished:
        return "not carried", problems
    if all(problem.startswith("extra lost") for problem in problems):
        return "extra lost", problems
    if "microbatches" in text or "total" in text:
        return "wrong total", problems
    return "other", problems


def one(
    trainer: Trainer, seed: int, known: dict[Case, dict[int, tuple[float, float]]]
) -> tuple[str, list[str]]:
    """Run the job of this seed and judge it."""
    rng = random.Random(seed)
    case, outside = draw(rng)
    plain = case.without_failures()
    if plain not in known:
        known[plain] = trainer.run(plain, f"reference-{len(known)}").trajectory()
    name = f"run-{seed}"
    out = trainer.folder / name
    job = trainer.start(case, name, "--step-limit", str(STEP_LIMIT))
    dead = strike(job, case, out, outside, rng) if outside else set()
    until = time.monotonic() + BOUND
    while job.running() and time.monotonic() < until:
        time.sleep(0.01)
    if job.running():
        (trainer.folder / f"{name}-stacks").write_text(stacks(out))
        job.end()
        return "hang", [f"no end after {BOUND:g} s"]
    code = job.wait(10)
    run = Run(case=case, out=out, code=code, said=job.stdout + job.stderr)
    outcome, problems = outcome_of(run, known[plain], dead)
    if outcome == "ok":
        shutil.rmtree(out)
        for file in trainer.folder.glob(f"{name}[-.]*"):
            file.unlink()
    return outcome, [
        str(case),
        f"killed from outside: {sorted(dead)}",
        *problems,
    ] if problems else []


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep cores busy with `count` loops that do nothing."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where runs that fail are kept")
    parser.add_argument("--runs", type=int, help="how many runs (default: 200)")
    parser.add_argument("--minutes", type=float, help="or for how long")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first run; the next has the next"
    )
    parser.add_argument("--load", type=int, default=0, help="busy loops beside the jobs")
    options = parser.parse_args()
    runs = options.runs or (10**9 if options.minutes else 200)
    until = time.monotonic() + 60 * (options.minutes or 10**6)
    options.out.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    known: dict[Case, dict[int, tuple[float, float]]] = {}
    begun = time.monotonic()
    with Preloaded() as preloaded, busy(options.load):
        trainer = Trainer(preloaded, options.out.resolve())
        for seed in range(options.seed, options.seed + runs):
            if time.monotonic() > until:
                break
            outcome, why = one(trainer, seed, known)
            counts[outcome] += 1
            if outcome != "ok":
                print(
                    f"seed {seed}: {outcome}", *(line[:600] for line in why), sep="\n  ", flush=True
                )
            done = counts.total()
            if done % 20 == 0:
                print(f"{done} runs, {time.monotonic() - begun:.0f} s: {dict(counts)}", flush=True)
    total = max(1, counts.total())
    print(f"\n{'outcome':12}  runs  share")
    for outcome, count in counts.most_common():
        print(f"{outcome:12}  {count:4}  {count / total:6.1%}")
    carried = (counts["ok"] + counts["extra lost"]) / total
    print(
        f"{counts.total()} runs in {time.monotonic() - begun:.0f} s, {carried:.1%} carried through"
    )
    return int(carried < 0.99 or any(counts[bad] for bad in BAD))


if __name__ == "__main__":
    sys.exit(main())
