"""The event log of a run, its judge, and what people see of it.

Needs neither torch nor MPI: a log can be verified and reported on with any laptop. Whoever writes
or reads a log starts from `grad_txn.log.events` and the typed lines in `grad_txn.log.lines`. The
judge, `grad_txn.log.verify`, shares no code with the rest, so nothing is imported here.
"""
