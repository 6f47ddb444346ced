"""What the package offers at its roots."""

import importlib.metadata
import subprocess
import sys

import pytest

import ulfm_core
from ulfm_core import codes, launch

NAMES = [
    "Agreement",
    "Consensus",
    "Detection",
    "Membership",
    "NotLaunchedError",
    "Outcome",
    "PeerLostError",
    "Repair",
    "ReplicaCondemnedError",
    "Seat",
    "Subgroup",
    "UlfmError",
    "UnsupportedMPIError",
    "UsageError",
    "Work",
    "World",
    "__version__",
    "init",
    "leave",
]
WORLD = [
    "agree",
    "all_gather",
    "all_reduce",
    "barrier",
    "beat",
    "broadcast",
    "comm",
    "consensus",
    "device_transport",
    "epoch",
    "group_comm",
    "group_rank",
    "group_size",
    "initial_size",
    "known_failed",
    "living",
    "members",
    "membership",
    "on_repair_phase",
    "quiesce",
    "rank",
    "repair",
    "replica_size",
    "set_last_words",
    "set_step_limit",
    "subgroup",
    "waiting",
]


def test_the_names_are_these() -> None:
    assert sorted(ulfm_core.__all__) == NAMES
    assert all(getattr(ulfm_core, name) is not None for name in NAMES)
    assert ulfm_core.__version__ == importlib.metadata.version("ulfm-core")


def test_the_world_is_one_object_with_these() -> None:
    offered = {name for name in dir(ulfm_core.World) if not name.startswith("_")}
    assert sorted(offered) == WORLD


def test_the_launcher_offers_these() -> None:
    assert launch.__all__ == ["Host", "Job", "main"]
    assert all(getattr(launch, name).__name__ == name for name in launch.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nobody'"):
        _ = launch.nobody


def test_the_codes_are_a_contract() -> None:
    assert (codes.FINISHED, codes.FAILED, codes.BAD_INPUT, codes.CONDEMNED) == (0, 1, 2, 75)
    assert codes.ended_by(15) == 143


@pytest.mark.parametrize("heavy", ["mpi4py", "numpy", "torch", "argparse", "ulfm_core._core"])
def test_a_rank_starts_without_what_it_does_not_need(heavy: str) -> None:
    code = f"import sys, ulfm_core.launch.bootstrap; assert {heavy!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
