"""The command ``workload-policy``: what a run will do, before it is started."""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence

from workload_policy import __version__
from workload_policy.command_line import Parser, run
from workload_policy.errors import WorkloadPolicyError
from workload_policy.loading import load_policy
from workload_policy.registry import POLICY_NAMES, policy_names
from workload_policy.simulation import simulate
from workload_policy.tables import layout_report, simulation_report

__all__ = ["main"]

_POLICIES = """\
policies:
  static    the global batch stays what it was: spares replace the dead for free, and what no
            spare covers is computed on top, once, in the step of the failure (the default)
  exact     as static, and every step counts the very microbatches of a failure-free run; no
            spares, each failure costs extra microbatches
  adaptive  the global batch shrinks with the replicas; a baseline to compare with

--policy also takes the names that installed packages add, module:NAME for a policy in a module that
can be imported, and FILE.py for a file of your own functions.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 for bad input.

    Args:
        argv: Arguments without the program's name; those of the process if None.
    """
    arguments = _parser().parse_args(argv)
    return run(
        lambda: arguments.command(arguments),
        name=f"workload-policy {arguments.name}",
        mistakes=WorkloadPolicyError,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="workload-policy",
        description="Who computes which microbatches when training replicas die or join.",
        epilog=_POLICIES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)

    layout = commands.add_parser(
        "layout",
        help="the split of one step over the replicas that are left",
        description="Show how one step's microbatches are split over the living replicas.",
        epilog=_POLICIES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_shape(layout)
    layout.add_argument(
        "--survivors",
        type=int,
        required=True,
        metavar="K",
        help="replicas alive now, those with the ids 0 to K-1; more than W if the run has grown",
    )
    layout.set_defaults(command=_layout)

    simulation = commands.add_parser(
        "simulate",
        help="a run, step by step, with replicas that die and join",
        description="Follow a run step by step through failures, without training anything.",
        epilog=_POLICIES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_shape(simulation)
    simulation.add_argument(
        "--steps", type=int, required=True, metavar="N", help="optimizer steps to run, from step 0"
    )
    simulation.add_argument(
        "--fail",
        type=_pair("STEP:REPLICA"),
        action="extend",
        nargs="+",
        default=[],
        metavar="STEP:REPLICA",
        help="a replica, counted from 0, that dies while the gradients of a step are reduced;"
        " takes several, those of one step die at once",
    )
    simulation.add_argument(
        "--join",
        type=_pair("STEP:COUNT"),
        action="extend",
        nargs="+",
        default=[],
        metavar="STEP:COUNT",
        help="how many replicas join right before a step; they get the next free ids",
    )
    simulation.set_defaults(command=_simulate)
    return parser


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replicas",
        type=int,
        required=True,
        metavar="W",
        help="replicas (whole copies of the model) the run starts with",
    )
    parser.add_argument(
        "--grad-accum",
        type=int,
        required=True,
        metavar="G",
        help="microbatches each of them computes in a step at the start; the global batch is W*G",
    )
    parser.add_argument(
        "--policy",
        default=POLICY_NAMES[0],
        metavar="NAME | module:NAME | FILE.py",
        help=f"one of {', '.join(policy_names())}, or one of your own; default: %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _layout(arguments: argparse.Namespace) -> None:
    policy = load_policy(arguments.policy)
    shape = {"replicas": arguments.replicas, "grad_accum": arguments.grad_accum}
    layout = policy.layout(**shape, survivors=arguments.survivors)
    # What members compute is the plan's to say: a policy need not follow its layout's quotas.
    plan = policy.relayout(policy.start(**shape), range(arguments.survivors))
    if arguments.json:
        contributions = list(plan.contributions.values())
        print(json.dumps({**layout.to_dict(), "contributions": contributions}))
    else:
        print(layout_report(plan))


def _simulate(arguments: argparse.Namespace) -> None:
    failures = defaultdict(list)
    for step, replica in arguments.fail:
        failures[step].append(replica)
    joins: defaultdict[int, int] = defaultdict(int)
    for step, count in arguments.join:
        joins[step] += count
    policy = load_policy(arguments.policy)
    steps = simulate(
        policy,
        replicas=arguments.replicas,
        grad_accum=arguments.grad_accum,
        steps=arguments.steps,
        failures=failures,
        joins=joins,
    )
    if arguments.json:
        for step in steps:
            print(json.dumps(step.to_dict()))
    else:
        print(simulation_report(steps, policy=policy.name))


def _pair(form: str) -> Callable[[str], tuple[int, int]]:
    """Return a converter for two whole numbers with a colon between them."""

    def convert(text: str) -> tuple[int, int]:
        first, colon, second = text.partition(":")
        if not (colon and first.isdecimal() and second.isdecimal()):
            raise argparse.ArgumentTypeError(f"{text!r} is not {form}, such as 3:1")
        return int(first), int(second)

    return convert
