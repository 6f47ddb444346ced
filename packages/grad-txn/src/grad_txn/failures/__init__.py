"""Failure schedules: who is killed, at which step, and where in it."""
