"""Two replicas of two ranks, each with a gloo group. Rank 2 dies while rank 3 waits in theirs."""

import os
import signal
import time

import numpy as np
import torch
import torch.distributed as dist

import ulfm_core
from ulfm_core.testing import say

reading, writing = os.pipe()
if os.fork() == 0:  # says when the rank has ended: it reads a pipe nobody else holds
    os.close(writing)
    os.read(reading, 1)
    say(ended=time.time())
    os._exit(0)
os.close(reading)

world = ulfm_core.init(replica_size=2)
dist.init_process_group("gloo")  # of the replica: ulfmrun --replica-size sets its variables
weights = torch.ones(1000)
data = np.ones(1000)
for step in range(6):
    if step == 3 and world.rank == 2:
        time.sleep(0.3)  # rank 3 waits in gloo meanwhile
        say(killed=time.time())
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(weights)
    while True:
        work = world.all_reduce(data, np.empty_like(data))
        if world.consensus(work.wait() is ulfm_core.Outcome.OK).passed:
            break
say(members=world.members)
