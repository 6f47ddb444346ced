"""Ways to end a rank's program. The first argument says which."""

import atexit
import os
import signal
import sys
import threading
import time

import ulfm_core
from ulfm_core.testing import say

case = sys.argv[1]
world = ulfm_core.init(wait_limit=20, recovery_limit=20)
rank = world.rank
atexit.register(lambda: say(at_exit=True))  # the program's own come before the way out


def part() -> None:
    say(consensus=world.consensus().passed)


if case == "return":
    part()
elif case == "exit-3":
    part()
    sys.exit(3)
elif case == "exit-system":
    raise SystemExit(3)
elif case == "one-exits-3":
    if rank == 1:
        sys.exit(3)
    begun = time.monotonic()
    consensus = world.consensus()
    assert consensus.repair is not None
    say(failed=consensus.repair.failed, seconds=time.monotonic() - begun)
elif case == "one-returns-early":
    if rank != 1:
        time.sleep(0.5)
        consensus = world.consensus()
        assert consensus.repair is not None
        say(failed=consensus.repair.failed)
elif case == "exception":
    if rank == 1:
        raise ArithmeticError("rank 1 had enough")
    consensus = world.consensus()
    assert consensus.repair is not None
    say(failed=consensus.repair.failed)
elif case == "all-raise":
    raise ArithmeticError("we all had enough")
elif case == "leave-5":
    part()
    ulfm_core.leave(5)
elif case == "abort":
    if rank == 1:
        os.abort()
    consensus = world.consensus()
    assert consensus.repair is not None
    say(failed=consensus.repair.failed)
elif case == "after-failures":
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    while not world.consensus().passed:
        pass
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    say(members=world.members)
    ulfm_core.leave()
elif case == "fork":
    child = os.fork()
    if child == 0:
        try:
            world.barrier()
        except RuntimeError as error:
            say(child=str(error))
        sys.exit(7)  # a child that ends as a program does is not the rank
    _, status = os.waitpid(child, 0)
    say(child_code=os.waitstatus_to_exitcode(status))
    part()
elif case == "threads":
    # A thread that outlives the main one still uses the world.
    threading.Timer(0.3, part).start()
elif case == "works-left":
    data = bytearray(8_000_000)
    works = [world.all_reduce(data) for _ in range(3)]  # nobody waits for them
else:
    sys.exit(f"no case {case!r}")
