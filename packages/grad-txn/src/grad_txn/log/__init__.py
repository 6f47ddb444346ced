"""The event log of a run, its judge, and what people see of it.

Needs neither torch nor MPI: a log can be verified and reported on any laptop.
"""
