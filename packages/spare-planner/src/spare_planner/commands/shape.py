"""The flags that say what is planned: how many groups, how redundant, placed how."""

import argparse

from spare_planner.placement import CONSTRUCTIONS, Placement, place

__all__ = ["add_json", "add_placement", "add_shape", "placement"]


def add_shape(parser: argparse.ArgumentParser, *, redundancy_default: str | None = None) -> None:
    """Add ``--groups`` and ``--redundancy``; the latter is required unless a default is named."""
    parser.add_argument(
        "--groups",
        type=int,
        required=True,
        metavar="N",
        help="groups (whole copies of the model), and as many shard types",
    )
    parser.add_argument(
        "--redundancy",
        type=int,
        required=redundancy_default is None,
        metavar="R",
        help="groups that host each shard type, and types that each group hosts"
        + (f"; default: {redundancy_default}" if redundancy_default else ""),
    )


def add_placement(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose among placements."""
    parser.add_argument(
        "--construction",
        choices=CONSTRUCTIONS,
        help="how types are placed; default: the first of these that exists for N and R",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of random numbers; default: %(default)s"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def placement(arguments: argparse.Namespace) -> Placement:
    """Return the placement that the flags describe.

    Raises:
        PlacementError: There is none.
    """
    return place(
        arguments.groups,
        arguments.redundancy,
        construction=arguments.construction,
        seed=arguments.seed,
    )
