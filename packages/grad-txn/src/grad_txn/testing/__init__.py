"""For tests of what runs over grad-txn: a world of threads, and logs of runs, played or read."""
