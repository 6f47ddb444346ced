"""``spare-planner theory``: the closed forms, and their check against a Monte Carlo."""

import argparse
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spare_planner import theory
from spare_planner.commands.shape import add_json, add_placement, add_shape, placement
from spare_planner.montecarlo import run_trials

__all__ = ["add"]

_OFF = 1  # exit code: a closed form is further off than promised


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "theory",
        help="how many failures a redundancy endures and what it costs, in closed form",
        description="Evaluate the closed forms of SPARe for N groups; with --check also measure"
        " the same by random failures, exit code 1 if a form is further off than promised.",
    )
    add_shape(parser, redundancy_default="the optimal one")
    parser.add_argument(
        "--check", action="store_true", help="compare with a Monte Carlo of real reorderings"
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=1000,
        metavar="T",
        help="runs to a wipe-out of the Monte Carlo; default: %(default)s",
    )
    add_placement(parser)
    add_json(parser)
    parser.set_defaults(run=_run)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Comparison:
    """One closed form beside what was measured.

    Attributes:
        name: What it is of.
        formula: Its value.
        measured: Mean of the Monte Carlo.
        margin: Half the width of the 95% interval of that mean.
        limit: Largest relative error that is promised.
    """

    name: str
    formula: float
    measured: float
    margin: float
    limit: float

    @property
    def error(self) -> float:
        return self.formula / self.measured - 1

    @property
    def holds(self) -> bool:
        return abs(self.error) <= self.limit

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "formula": self.formula,
            "measured": self.measured,
            "low": self.measured - self.margin,
            "high": self.measured + self.margin,
            "error": self.error,
            "limit": self.limit,
            "holds": self.holds,
        }


def _run(arguments: argparse.Namespace) -> int:
    best = int(theory.optimal_redundancy(arguments.groups))
    if arguments.redundancy is None:
        arguments.redundancy = best
    n, r = arguments.groups, arguments.redundancy
    values = {
        "groups": n,
        "redundancy": r,
        "r_star": best,
        "mu": float(theory.endurable_failures(n, r)),
        "masked_failures": float(theory.masked_failures(n, r)),
        "stacks": float(theory.stacks_per_step(n, r)),
        "stacks_paper": float(theory.stacks_per_step_paper(n, r)),
        "patches_per_failure": float(theory.patches_per_failure(n, r)),
        "stacks_with_patches": float(theory.stacks_per_step(n, r, patches=True)),
    }
    comparisons = _check(arguments) if arguments.check else []
    if arguments.json:
        checked = {"check": [c.to_dict() for c in comparisons]} if arguments.check else {}
        print(json.dumps(values | checked))
    else:
        print(_report(values))
        if comparisons:
            print(_check_report(comparisons, trials=arguments.trials))
    return 0 if all(comparison.holds for comparison in comparisons) else _OFF


def _check(arguments: argparse.Namespace) -> list[_Comparison]:
    n, r = arguments.groups, arguments.redundancy
    trials = run_trials(placement(arguments), trials=arguments.trials, seed=arguments.seed)
    forms = [
        ("mu", theory.endurable_failures(n, r), trials.masked, 0.015),
        ("mu, summed", theory.masked_failures(n, r), trials.masked, 0.015),
        ("stacks", theory.stacks_per_step(n, r), trials.stacks, 0.01),
        (
            "stacks and patches",
            theory.stacks_per_step(n, r, patches=True),
            trials.stacks + trials.patches,
            0.03,
        ),
    ]
    return [
        _Comparison(
            name=name,
            formula=float(formula),
            measured=float(measured.mean()),
            margin=_margin(measured),
            limit=limit,
        )
        for name, formula, measured, limit in forms
    ]


def _margin(sample: NDArray[np.float64]) -> float:
    return 1.96 * float(sample.std(ddof=1)) / math.sqrt(len(sample))


def _report(values: dict[str, Any]) -> str:
    star = (
        "the optimal one"
        if values["redundancy"] == values["r_star"]
        else "optimal is " + str(values["r_star"])
    )
    return "\n".join(
        [
            f"{values['groups']} groups, redundancy {values['redundancy']} ({star})",
            "",
            f"failures endured, mu           {values['mu']:9.2f}",
            f"failures endured, summed       {values['masked_failures']:9.2f}",
            f"stacks a step, S               {values['stacks']:9.3f}",
            f"stacks a step, cut off at mu   {values['stacks_paper']:9.3f}",
            f"patches a failure              {values['patches_per_failure']:9.3f}",
            f"stacks and patches             {values['stacks_with_patches']:9.3f}",
        ]
    )


def _check_report(comparisons: list[_Comparison], *, trials: int) -> str:
    lines = ["", f"{'':20} {'formula':>9} {f'{trials} trials':>20} {'error':>8} {'limit':>7}"]
    for c in comparisons:
        measured = f"{c.measured:.4g} +- {c.margin:.2g}"
        verdict = "" if c.holds else "  off"
        lines.append(
            f"{c.name:20} {c.formula:9.4g} {measured:>20} {c.error:+8.2%} {c.limit:7.1%}{verdict}"
        )
    return "\n".join(lines)
