"""The report of a run: a picture, a page and a summary (needs matplotlib).

The picture is ``report.png``; the page is ``report.html``, one file that holds the picture and the
tables and needs nothing else.
"""

import base64
import os
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from grad_txn.errors import ExtraMissingError, LogError
from grad_txn.log.history import Death, History, Recovery, read_history
from grad_txn.log.verify import Verdict, verify

__all__ = ["summarize", "write_report"]

_SHOWN = 10
"""Recoveries told on the console; the page has them all."""


def write_report(
    directory: str | os.PathLike[str], *, reference: str | os.PathLike[str] | None = None
) -> str:
    """Write ``report.png`` and ``report.html`` into the directory of a run.

    Args:
        directory: Directory of the run, the one that holds ``events/``.
        reference: Directory of a run to compare with, usually the one without failures.

    Returns:
        The summary in plain text, as ``python -m grad_txn.report`` prints it.

    Raises:
        LogError: A log cannot be read, or the report cannot be written.
        ExtraMissingError: matplotlib is not installed.
    """
    try:
        from grad_txn.log import _charts
    except ModuleNotFoundError as error:
        raise ExtraMissingError("the report", library="matplotlib", extra="report") from error
    history = read_history(directory)
    compared = None if reference is None else read_history(reference)
    # A policy that promises no batch is to be reported on, not to be refused.
    verdict = verify(os.fspath(directory), allow_shrinking_batch=history.start.promise == "none")
    picture, page = (Path(directory) / f"report.{kind}" for kind in ("png", "html"))
    facts = summarize(history, verdict, reference=compared)
    try:
        _charts.draw(history, picture, reference=compared)
        page.write_text(_page(history, facts, picture.read_bytes()), encoding="utf-8")
    except OSError as error:
        raise LogError(f"{error.filename}: cannot be written: {error.strerror}") from error
    stories = [_story(recovery) for recovery in history.recoveries]
    shown = stories if len(stories) <= _SHOWN else [*stories[:_SHOWN], f"... all in {page}"]
    lines = [(name, fact) for name, fact in facts.items() if name != "failures"]
    position = list(facts).index("failures")
    lines[position:position] = [("failures", facts["failures"]), *(("", story) for story in shown)]
    lines.append(("report", f"{page}, {picture}"))
    return "\n".join(f"{name:<11} {fact}" for name, fact in lines)


def summarize(
    history: History, verdict: Verdict, *, reference: History | None = None
) -> dict[str, str]:
    """Say in a few phrases how the run went: topic -> fact, in the order to read them."""
    steps, start = history.steps, history.start
    facts = {
        "run": f"{_steps(history)}, policy {start.policy}, loss {steps[0].loss:.4f} to "
        f"{steps[-1].loss:.4f}",
        "batch": _judgement(history, verdict),
        "replicas": f"{steps[0].living} at the first commit, {steps[-1].living} at the last "
        f"({steps[0].ranks} and {steps[-1].ranks} ranks)",
    }
    if any(step.stacks for step in steps):
        mean = sum(step.stacks for step in steps) / len(steps)
        facts["stacks"] = f"{mean:.2f} a step in the mean, at most {max(s.stacks for s in steps)}"
    if history.resumed:
        facts["resumed"] = "at step " + ", ".join(map(str, history.resumed))
    facts["failures"] = f"{len(history.recoveries)} recovered, {len(history.deaths)} replicas lost"
    noticed = {death for recovery in history.recoveries for death in recovery.deaths}
    unseen = [death for death in history.deaths if death not in noticed]
    if unseen:
        facts["failures"] += f"; after the last commit: {_deaths(unseen)}"
    total, rest = history.median_to_commit(), history.median_overhead()
    if total is not None and rest is not None:
        facts["recovery"] = (
            f"SIGKILL to next commit: median {_ms(total)}; without extra microbatches {_ms(rest)}"
        )
    typical = history.median_gone()
    if typical is not None:
        longest = max(death.gone for death in history.deaths if death.gone is not None)
        facts["peers"] = (
            f"exit of a dead rank's last peer: median {_ms(typical)} after its death, at most "
            f"{_ms(longest)}"
        )
    facts["throughput"] = _throughput(history)
    if reference is not None:
        facts["reference"] = _comparison(history, reference)
    return facts


def _judgement(history: History, verdict: Verdict) -> str:
    if verdict.holds and verdict.smallest_total == verdict.global_batch:
        return f"proved: each step committed exactly {history.global_batch} microbatches"
    if verdict.holds:
        return (
            f"shrinks with policy {history.start.policy}: {verdict.smallest_total} to "
            f"{history.global_batch} microbatches a step"
        )
    more = f" (and {len(verdict.problems) - 1} more)" if len(verdict.problems) > 1 else ""
    return f"NOT proved: {verdict.problems[0]}{more}"


def _steps(history: History) -> str:
    first, last = history.steps[0].step, history.steps[-1].step
    return f"{len(history.steps)} step{'s' * (first != last)} ({first} to {last})"


def _deaths(deaths: Iterable[Death]) -> str:
    return ", ".join(map(_death, deaths)) or "nobody died"


def _death(death: Death) -> str:
    """Who died and where; of a replica of several ranks also which of them."""
    ranks = ""
    if death.positions and (death.gone is not None or len(death.positions) > 1):
        ranks = f"rank {' and '.join(map(str, death.positions))}, "
    return f"replica {death.replica} ({ranks}{death.at.replace('_', ' ')})"


def _decision(recovery: Recovery) -> str:
    """What the survivors decided, in words."""
    parts = [f"replica {spare} promoted" for spare in recovery.promoted.values()]
    if recovery.boundary:
        parts.insert(0, "policy boundary")
    if recovery.extra:
        parts.append(f"{recovery.extra} extra microbatches")
    return ", ".join(parts) or "membership repaired, work unchanged"


def _story(recovery: Recovery) -> str:
    took = "" if recovery.to_commit is None else f", next commit after {_ms(recovery.to_commit)}"
    return f"step {recovery.step}: {_deaths(recovery.deaths)}: {_decision(recovery)}{took}"


def _throughput(history: History) -> str:
    """The first and the last quarter of the run: what the survivors made of it."""
    quarter = max(1, len(history.steps) // 4)
    ends = (history.steps[:quarter], history.steps[-quarter:])
    first, last = (
        sum(step.tokens for step in part) / (sum(s.seconds * s.ranks for s in part) or 1)
        for part in ends
    )
    return f"{first:,.0f} tokens/s/rank in the first quarter, {last:,.0f} in the last"


def _comparison(history: History, reference: History) -> str:
    differences = history.differences(reference)
    if not differences:
        return "no step in common"
    if not any(differences.values()):
        return f"bit-identical loss in all {len(differences)} steps compared"
    worst = max(differences, key=lambda step: differences[step])
    return (
        f"largest relative difference of the loss {differences[worst]:.1e} (step {worst}), "
        f"over {len(differences)} steps"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; margin: 2rem auto; max-width: 1100px;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
img { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
         border-bottom: 1px solid #ddd; }
td.number, th.number { text-align: right; white-space: nowrap;
                       font-variant-numeric: tabular-nums; }
.note { color: #555; font-size: .9rem; }
"""

_NOTE = (
    "Durations are medians over the survivors. SIGKILL to commit is measured from the victim's own "
    "last line to the survivors' next step line. It holds the ordinary rest of the step as well "
    "when a rank dies outside a synchronization. Effective throughput is tokens / (seconds x "
    "living ranks)."
)


def _page(history: History, facts: Mapping[str, str], picture: bytes) -> str:
    image = base64.b64encode(picture).decode("ascii")
    summary = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(fact)}</td></tr>" for name, fact in facts.items()
    )
    title = f"{_steps(history)}, {history.most_replicas} replicas, {len(history.deaths)} lost"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>"
        f'<div class="wide"><table>{summary}</table></div>'
        f'<p><img alt="Loss, roles, step time, throughput and recoveries over the steps" '
        f'src="data:image/png;base64,{image}"></p>'
        f"{_recoveries(history)}"
        "</body></html>\n"
    )


def _recoveries(history: History) -> str:
    if not history.recoveries:
        return ""
    heads = ("step", "epoch", "who died", "decision")
    phases = ("detect", "repair", "record", "restore", "re-reduce", "extra compute")
    totals = ("last peer's exit", "SIGKILL to commit", "without extra")
    head = "".join(f"<th>{name}</th>" for name in heads)
    head += "".join(f'<th class="number">{name} (ms)</th>' for name in (*phases, *totals))
    rows = "".join(f"<tr>{_row(recovery)}</tr>" for recovery in history.recoveries)
    return (
        f'<h2>Recoveries</h2><div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
        f'<p class="note">{escape(_NOTE)}</p>'
    )


def _row(recovery: Recovery) -> str:
    texts = (
        str(recovery.step),
        str(recovery.epoch),
        _deaths(recovery.deaths),
        f"{_decision(recovery)}; restore {recovery.mode.replace('_', '-')}",
    )
    times = (
        recovery.detect,
        recovery.repair,
        recovery.record,
        recovery.restore,
        recovery.rereduce,
        recovery.compute,
        max((death.gone for death in recovery.deaths if death.gone is not None), default=None),
        recovery.to_commit,
        recovery.overhead,
    )
    return "".join(f"<td>{escape(text)}</td>" for text in texts) + "".join(
        f'<td class="number">{"?" if time is None else f"{1e3 * time:,.1f}"}</td>' for time in times
    )
