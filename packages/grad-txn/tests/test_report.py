import base64
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grad_txn.failures import At, Kill, Shape, generate
from grad_txn.testing.played import play_run

pytest.importorskip("matplotlib")

from grad_txn.log.report import write_report
from grad_txn.report import main

pytestmark = pytest.mark.timeout(120)

KILLS = [Kill(step=2, replica=0, at=At.DURING_SYNC), Kill(step=5, replica=2, at=At.DURING_SYNC)]


def embedded_picture(page: str) -> bytes:
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return base64.b64decode(picture)


def boundary(extra: int) -> str:
    return f"policy boundary, {extra} extra microbatches"


def test_a_report_is_a_picture_and_one_page_that_needs_nothing(tmp_path: Path) -> None:
    play_run(tmp_path / "reference")
    play_run(tmp_path / "run", kills=KILLS)
    summary = write_report(tmp_path / "run", reference=tmp_path / "reference")
    picture = (tmp_path / "run" / "report.png").read_bytes()
    page = (tmp_path / "run" / "report.html").read_text()
    assert picture.startswith(b"\x89PNG")
    assert embedded_picture(page) == picture
    assert not re.search(r'(href|src)="(?!data:)|url\(|https?://', page)
    assert page.count("<tr>") == len(KILLS) + 1 + len(
        [line for line in summary.splitlines() if line[0] != " " and "report.html" not in line]
    )
    assert "replica 0 (during sync)" in page
    assert "policy boundary, 8 extra microbatches" in page


def test_the_summary_says_what_happened(tmp_path: Path) -> None:
    play_run(tmp_path / "reference")
    play_run(tmp_path / "run", kills=KILLS, policy="exact")
    run = tmp_path / "run"
    assert write_report(run, reference=tmp_path / "reference").splitlines() == [
        "run         8 steps (0 to 7), policy exact, loss 2.4945 to 1.9971",
        "batch       proved: each step committed exactly 32 microbatches",
        "replicas    4 at the first commit, 2 at the last (4 and 2 ranks)",
        "failures    2 recovered, 2 replicas lost",
        f"{'':11} step 2: replica 0 (during sync): {boundary(8)}, next commit after 142 ms",
        f"{'':11} step 5: replica 2 (during sync): {boundary(11)}, next commit after 232 ms",
        "recovery    SIGKILL to next commit: median 187 ms; without extra microbatches 52 ms",
        "throughput  15,754 tokens/s/rank in the first quarter, 16,384 in the last",
        "reference   bit-identical loss in all 8 steps compared",
        f"report      {run}/report.html, {run}/report.png",
    ]


def test_a_different_loss_is_measured(tmp_path: Path) -> None:
    play_run(tmp_path / "reference", steps=12)
    play_run(tmp_path / "run", kills=KILLS, policy="adaptive")
    summary = write_report(tmp_path / "run", reference=tmp_path / "reference")
    (line,) = [line for line in summary.splitlines() if line.startswith("reference")]
    assert re.search(
        r"largest relative difference .* \d\.\de-0\d \(step [2-7]\), over 8 steps", line
    )
    assert "batch       shrinks with policy adaptive: 16 to 32 microbatches a step" in summary


def test_a_loss_that_is_no_number_has_a_report(tmp_path: Path) -> None:
    play_run(tmp_path / "reference")
    play_run(tmp_path / "run")
    for path in (tmp_path / "run" / "events").iterdir():
        path.write_text(
            re.sub(
                r'(?<="step": 3, "epoch": 0, "generation": 0, "total": 32, "loss": )[\d.]+',
                '"nan"',
                path.read_text(),
            )
        )
    summary = write_report(tmp_path / "run", reference=tmp_path / "reference")
    assert "bit-identical loss in all 7 steps compared" in summary


def test_a_broken_promise_is_said_first(tmp_path: Path) -> None:
    play_run(tmp_path)
    path = tmp_path / "events" / "0.jsonl"
    path.write_text(path.read_text().replace('"total": 32', '"total": 31', 1))
    assert "batch       NOT proved: " in write_report(tmp_path)
    assert "NOT proved" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "case",
    [
        {"steps": 1},
        {"steps": 1, "kills": [Kill(step=0, replica=0, at=At.DURING_SYNC)]},
        {"policy": "adaptive", "kills": KILLS},
        {"replicas": 1, "grad_accum": 1, "steps": 3},
        {"replica_size": 3, "kills": [Kill(step=7, replica=1, at=At.OPTIMIZER)]},
        {
            "replicas": 64,
            "grad_accum": 2,
            "steps": 120,
            "kills": generate(Shape(replicas=64, steps=120), seed=1, count=40),
        },
    ],
    ids=["one step", "one step, one death", "adaptive", "one replica", "last death", "large"],
)
def test_any_run_has_a_report(tmp_path: Path, case: dict[str, object]) -> None:
    play_run(tmp_path, **case)  # type: ignore[arg-type]
    assert "NOT" not in write_report(tmp_path, reference=tmp_path)


def test_a_resumed_run_has_a_report(tmp_path: Path) -> None:
    play_run(tmp_path, kills=KILLS, stop=7)
    checkpoint = play_run(tmp_path / "aside", kills=KILLS[:1], stop=4)
    play_run(tmp_path, resume=checkpoint, run="second", replicas=3, begin=1.8e9)
    assert "resumed     at step 4" in write_report(tmp_path)


def test_the_command_names_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    play_run(tmp_path)
    assert main([str(tmp_path), "--reference", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {tmp_path}: no events/ in it; give the directory passed to --out",
        f"error: {tmp_path}/nowhere: no events/ in it; give the directory passed to --out",
    ]


def test_without_matplotlib_the_command_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; "
        "from grad_txn.report import main; sys.exit(main([sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the report needs matplotlib, which is not installed; "
        "run: pip install 'grad-txn[report]'\n"
    )
