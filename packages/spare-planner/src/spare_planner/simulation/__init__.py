"""Time-to-train under failures, event by event.

`Scenario` says what a run is, `Clocks` or `Replay` when groups fail, a `Strategy` what a failure
costs, `run_trial` puts them together, and `simulate` repeats that and states what was seen.
"""
