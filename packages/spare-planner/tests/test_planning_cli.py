"""The commands simulate, recommend and fit as scripts and people meet them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spare_planner.cli import main
from spare_planner.commands.progress import progress_bar
from spare_planner.durations import spoken

CALM = ["--groups", "50", "--mtbf", "1h", "--steps", "200"]
SIMULATE = ["simulate", "--strategy", "spare", *CALM, "--redundancy", "4", "--trials", "3"]
RECOMMEND = [
    "recommend",
    *CALM,
    "--restart",
    "10m",
    "--checkpoint",
    "30",
    "--step",
    "10",
    "--allreduce",
    "1",
    "--trials",
    "2",
]
LOG = "unit,start,end,kind\n" + "".join(
    f"n{i % 7},{3000 * i + 500},{3000 * i + 900},GPU\n" for i in range(40)
)


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "faults.csv"
    path.write_text(LOG, encoding="utf-8")
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_simulate_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *SIMULATE)
    assert (found["strategy"], found["groups"], found["redundancy"]) == ("spare", 50, 4)
    assert (found["trials"], found["finished"]) == (3, 3)
    for name in (
        "ttt_ratio",
        "availability",
        "availability_strict",
        "restarts",
        "stacks_per_step",
        "patches_per_step",
    ):
        value = found[name]
        assert isinstance(value, dict)
        assert value["low"] <= value["mean"] <= value["high"]


def test_simulate_is_reproduced_by_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    one = answer(capsys, *SIMULATE, "--seed", "5")
    assert answer(capsys, *SIMULATE, "--seed", "5", "--processes", "1") == one
    assert answer(capsys, *SIMULATE, "--seed", "6") != one


@pytest.mark.parametrize("strategy", ["spare", "replication", "checkpoint", "elastic"])
@pytest.mark.parametrize("semantics", ["clean", "paper"])
def test_simulate_as_a_table(
    capsys: pytest.CaptureFixture[str], strategy: str, semantics: str
) -> None:
    flags = ["--semantics", semantics, "--mtbf", "1d", "--steps", "200", "--trials", "2"]
    assert main(["simulate", "--strategy", strategy, "--groups", "50", *flags]) == 0
    out = capsys.readouterr().out
    assert out.startswith(strategy)
    assert f"{semantics} restarts of 3,600 s" in out
    assert "availability, strict" in out


def test_simulate_needs_nothing_but_groups_up_to_100000(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(
        capsys,
        "simulate",
        "--strategy",
        "spare",
        "--groups",
        "100000",
        "--steps",
        "300",
        "--trials",
        "1",
    )
    assert found["groups"] == 100_000


def test_simulate_from_a_log(capsys: pytest.CaptureFixture[str], log: str) -> None:
    flags = ["--trace", log, "--units", "20", "--groups", "20", "--steps", "400", "--trials", "2"]
    found = answer(capsys, "simulate", "--strategy", "elastic", *flags, "--repair", "log")
    assert found["mtbf"] == pytest.approx((3000 * 39 + 900) / 40)
    whole = ["--from-start", "--step", "60", "--allreduce", "1"]
    again = answer(capsys, "simulate", "--strategy", "checkpoint", *flags, *whole)
    restarts = again["restarts"]
    assert isinstance(restarts, dict)
    assert restarts["mean"] > 3


def test_correlated_failures_cost_more(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "simulate",
        "--strategy",
        "replication",
        "--redundancy",
        "2",
        "--groups",
        "64",
        "--mtbf",
        "20m",
        "--steps",
        "1500",
        "--trials",
        "4",
    ]
    alone = answer(capsys, *flags)
    racks = answer(capsys, *flags, "--domain", "8", "--correlated", "0.3")
    one, other = alone["restarts"], racks["restarts"]
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    assert other["low"] > one["high"]


def test_recommend_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *RECOMMEND, "--gpus-per-group", "16", "--price-per-gpu-hour", "2")
    assert found["strategy"] in {"spare", "replication", "checkpoint", "elastic"}
    assert found["gpus"] == 800
    assert found["gpu_mtbf"] == pytest.approx(3600 * 800)
    assert found["cost"] == pytest.approx(2 * float(str(found["gpu_hours"])))
    for name in (
        "redundancy",
        "checkpoint_every",
        "checkpoint_interval",
        "ttt_ratio",
        "availability",
        "why",
        "runner_up",
        "candidates",
        "caveats",
    ):
        assert found[name]


def test_recommend_as_text(capsys: pytest.CaptureFixture[str], log: str) -> None:
    assert main(RECOMMEND) == 0
    out = capsys.readouterr().out
    assert "Recommended: elastic redistribution" in out
    assert "Runner-up: " in out
    flags = ["--trace", log, "--units", "20", "--gpus", "160", "--gpus-per-group", "8"]
    assert main(["recommend", *flags, "--steps", "200", "--trials", "1"]) == 0
    assert "a failure anywhere every 49.1 min" in capsys.readouterr().out


def test_gpu_mtbf_is_that_of_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--gpus", "800", "--gpus-per-group", "16", "--steps", "50", "--trials", "0"]
    found = answer(capsys, "recommend", *flags, "--gpu-mtbf", "800h")
    assert found["mtbf"] == pytest.approx(3600)


def test_fit_as_json(capsys: pytest.CaptureFixture[str], log: str) -> None:
    found = answer(capsys, "fit", log, "--units", "20", "--scale-to", "1600", "16000")
    assert (found["faults"], found["failures"], found["failed_units"]) == (40, 40, 7)
    mtbf, scaled = found["mtbf"], found["scaled"]
    assert isinstance(mtbf, dict)
    assert isinstance(scaled, dict)
    assert mtbf["value"] == pytest.approx(2947.5)
    assert scaled["1600"]["value"] == pytest.approx(294.75)
    assert scaled["16000"]["low"] < scaled["16000"]["value"] < scaled["16000"]["high"]


def test_fit_as_text(capsys: pytest.CaptureFixture[str], log: str) -> None:
    assert main(["fit", log, "--scale-to", "16000"]) == 0
    out = capsys.readouterr().out
    assert "MTBF of 16,000 GPUs" in out
    assert "what the log does not carry:" in out
    assert "--units" in out


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures(
    capsys: pytest.CaptureFixture[str], log: str, tmp_path: Path, ending: str
) -> None:
    pytest.importorskip("matplotlib")
    fitted, planned = tmp_path / f"fit.{ending}", tmp_path / f"plan.{ending}"
    assert main(["fit", log, "--plot", str(fitted)]) == 0
    assert main([*RECOMMEND, "--trials", "1", "--plot", str(planned)]) == 0
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    for path in (fitted, planned):
        assert path.read_bytes().startswith(start)
        assert path.stat().st_size > 10_000
    capsys.readouterr()


def test_without_matplotlib_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: str, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["fit", log, "--plot", str(tmp_path / "a.png")]) == 2
    assert "pip install 'spare-planner[plot]'" in one_line(capsys)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("spare-planner")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--strategy", "luck"], "invalid choice: 'luck'"),
        (["--strategy", "spare"], "give --groups"),
        (["--strategy", "spare", "--groups", "0"], "--groups must be at least 1"),
        (["--strategy", "spare", "--groups", "9", "--redundancy", "10"], "from 1 to 9"),
        (["--strategy", "spare", "--groups", "9", "--trials", "0"], "trials must be at least 1"),
        (["--strategy", "spare", "--groups", "9", "--seed", "-1"], "seed must not be negative"),
        (["--strategy", "spare", "--groups", "9", "--mtbf", "0"], "must be above 0"),
        (["--strategy", "spare", "--groups", "9", "--mtbf", "soon"], "'soon' is no duration"),
        (["--strategy", "spare", "--groups", "9", "--mtbf", "1.2.3"], "no duration"),
        (["--strategy", "spare", "--groups", "9", "--step", "0"], "stack seconds"),
        (["--strategy", "spare", "--groups", "9", "--shape", "0"], "shape"),
        (["--strategy", "spare", "--groups", "9", "--jitter", "nan"], "jitter must be a finite"),
        (["--strategy", "spare", "--groups", "9", "--steps", "0"], "steps must be at least 1"),
        (["--strategy", "spare", "--groups", "9", "--processes", "0"], "processes"),
        (["--strategy", "spare", "--groups", "9", "--checkpoint-every", "0"], "checkpoint every"),
        (["--strategy", "spare", "--groups", "9", "--restart-below", "1"], "restart below"),
        (["--strategy", "spare", "--groups", "9", "--correlated", "0.1"], "--domain"),
        (["--strategy", "spare", "--groups", "9", "--repair", "log"], "needs --trace"),
        (["--strategy", "spare", "--groups", "9", "--trace", "no.csv"], "cannot read the log"),
        (["--strategy", "spare", "--groups", "9", "--gpu-mtbf", "1d"], "--gpus-per-group"),
        (
            ["--strategy", "spare", "--groups", "9", "--mtbf", "1d", "--scale", "1d"],
            "contradict each other",
        ),
        (["--strategy", "spare", "--gpus", "10", "--gpus-per-group", "64"], "do not hold"),
        (
            ["--strategy", "spare", "--gpus", "64", "--gpus-per-group", "8", "--groups", "9"],
            "8 groups and not 9",
        ),
        (
            ["--strategy", "elastic", "--groups", "9", "--microbatches", "0"],
            "at least 1 microbatch",
        ),
        (
            [
                "--strategy",
                "spare",
                "--groups",
                "9",
                "--distribution",
                "exponential",
                "--shape",
                "0.5",
            ],
            "has no shape",
        ),
    ],
)
def test_wrong_input_of_simulate(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    try:
        code = main(["simulate", *arguments])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    assert code == 2
    assert complaint in one_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--groups", "9"], "give --mtbf, --gpu-mtbf or --trace"),
        (["--groups", "9", "--mtbf", "1h", "--strategies", "luck"], "'luck'"),
        (["--groups", "9", "--mtbf", "1h", "--strategies", ","], "no strategy"),
        (["--groups", "9", "--mtbf", "1h", "--trials", "-1"], "trials must not be negative"),
        (["--groups", "9", "--mtbf", "1h", "--seed", "-1"], "seed"),
        (["--groups", "9", "--mtbf", "1h", "--redundancy", "1"], "from 2 to 9"),
        (["--groups", "9", "--mtbf", "1h", "--price-per-gpu-hour", "-1"], "price"),
        (["--groups", "9", "--mtbf", "1h", "--microbatches", "0"], "microbatch"),
        (["--groups", "9", "--mtbf", "1h", "--plot", "a.bmp"], "must end in .png"),
        (["--groups", "9", "--mtbf", "1h", "--plot", "/no/where/a.png"], "no folder"),
    ],
)
def test_wrong_input_of_recommend(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["recommend", "--steps", "20", "--trials", "0", *arguments]) == 2
    assert complaint in one_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--units", "3"], "7 different units"),
        (["--gpus-per-unit", "0"], "--gpus-per-unit"),
        (["--scale-to", "0"], "--scale-to"),
        (["--exclude", "g"], "all 40 faults"),
        (["--plot", "a.txt"], "must end in"),
        (["--log-end", "100"], "after it ends"),
    ],
)
def test_wrong_input_of_fit(
    capsys: pytest.CaptureFixture[str], log: str, arguments: list[str], complaint: str
) -> None:
    assert main(["fit", log, *arguments]) == 2
    assert complaint in one_line(capsys)


def test_several_processes_from_a_shell() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "spare_planner",
            *SIMULATE,
            "--processes",
            "2",
            "--steps",
            "3000",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["trials"] == 3


def test_progress_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress_bar(4) is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = progress_bar(4)
    assert show is not None
    show(2)
    assert "] 2/4 trials" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.25 s"),
        (59, "59 s"),
        (120, "2.0 min"),
        (7200, "2.0 h"),
        (2e6, "23.1 d"),
        (4e8, "12.7 y"),
        (float("inf"), "no end"),
    ],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
