"""The door: policies by name, from modules and from files, and every way to get one wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workload_policy import (
    ExactBatch,
    InOrder,
    Policy,
    PolicyError,
    Promise,
    agreed_table,
    load_policy,
    policy_names,
)

EXAMPLE = Path(__file__).parents[1] / "examples" / "slower_gets_less.py"

QUOTAS = "def quotas(layout, roles): return {m: layout.quota(role) for m, role in roles.items()}\n"
LAYOUT = "def layout(*, replicas, grad_accum, survivors): raise NotImplementedError\n"
RESPOND = "def respond(plan, failed, roles): raise NotImplementedError\n"
ONE_CLASS = (
    "from workload_policy import ExactBatch, Promise\n"
    "class Mine(ExactBatch):\n"
    "    promise = Promise.BATCH\n"
    "    def __init__(self, *, hours=8):\n"
    "        self.hours = hours\n"
)


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def follow(policy: Policy) -> str:
    """What a policy makes of a few failures, as text."""
    plan = policy.start(replicas=5, grad_accum=4)
    seen = []
    for dead in ((1,), (0, 4)):
        plan = policy.on_failure(plan, agreed_table(plan, dead)).plan
        seen.append(plan.to_dict())
        plan = policy.advance(plan)[1]
    return json.dumps([*seen, plan.to_dict()])


# ------------------------------------------------------------------------------ what is given


def test_names() -> None:
    assert policy_names()[:3] == ("static", "adaptive", "exact")
    assert [load_policy(name).promise for name in policy_names()[:3]] == ["batch", "none", "exact"]


def test_a_file_of_functions() -> None:
    policy = load_policy(str(EXAMPLE))
    assert (policy.name, policy.promise) == ("slower_gets_less", Promise.EXACT)
    assert policy.start(replicas=4, grad_accum=8).contributions == {0: 10, 1: 10, 2: 7, 3: 5}


def test_what_a_file_does_not_say(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, QUOTAS, "evenly.py"))
    assert (policy.name, policy.promise) == ("evenly", Promise.BATCH)
    static = load_policy("static")
    plan, same = (p.start(replicas=4, grad_accum=3) for p in (policy, static))
    for failed in ({1}, {0}, {3}):
        decision = policy.on_failure(plan, agreed_table(plan, failed))
        expected = static.on_failure(same, agreed_table(same, failed))
        assert decision.plan.assigned == expected.plan.assigned
        plan, same = policy.advance(decision.plan)[1], static.advance(expected.plan)[1]


@pytest.mark.parametrize(
    ("text", "promise"),
    [
        (QUOTAS + "base = 'adaptive'\n", Promise.NONE),
        (QUOTAS + "base = 'adaptive'\npromise = 'none'\n", Promise.NONE),
        (LAYOUT + RESPOND + "base = 'adaptive'\npromise = 'batch'\n", Promise.BATCH),
        (LAYOUT + RESPOND + "promise = 'exact'\n", Promise.EXACT),
        (RESPOND + "base = 'exact'\n", Promise.BATCH),
    ],
)
def test_what_it_may_promise(tmp_path: Path, text: str, promise: Promise) -> None:
    assert load_policy(write(tmp_path, text)).promise is promise


def test_loaded_again_it_is_equal(tmp_path: Path) -> None:
    path = write(tmp_path, "name = 'ours'\n" + QUOTAS)
    first = load_policy(path)
    assert load_policy(path) == first
    assert hash(load_policy(path)) == hash(first)
    assert first.name == "ours"
    assert load_policy(str(EXAMPLE)) != first
    write(tmp_path, "name = 'other'\n" + QUOTAS)
    assert load_policy(path) != first
    mine = write(tmp_path, ONE_CLASS, "one.py")
    assert load_policy(mine, hours=9) == load_policy(mine, hours=9) != load_policy(mine)


def test_other_processes_decide_alike() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_loading import follow, load_policy\n"
        f"print(follow(load_policy({str(EXAMPLE)!r})))"
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        for _ in range(2)
    ]
    assert done[0].stdout == done[1].stdout == follow(load_policy(str(EXAMPLE))) + "\n"


def test_a_file_with_a_class(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, ONE_CLASS, "sleepy.py"), hours=9)
    assert isinstance(policy, ExactBatch)
    assert (policy.name, policy.promise, vars(policy)) == ("sleepy", Promise.BATCH, {"hours": 9})
    assert policy.start(replicas=2, grad_accum=1).policy == "sleepy"
    assert ExactBatch.name == "exact"


def test_a_file_may_have_dataclasses(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass(kw_only=True)\nclass Speed:\n    value: float = 1.0\n"
    )
    assert load_policy(write(tmp_path, text + QUOTAS)).name == "mine"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of somebody's own, on the Python path."""
    write(
        tmp_path,
        "from workload_policy import ExactBatch, StaticWorld\n"
        "class Mine(ExactBatch):\n"
        "    name = 'mine'\n"
        "    def __init__(self, *, hours=8):\n"
        "        self.hours = hours\n"
        "class Unnamed(ExactBatch): pass\n"
        "class Boastful(ExactBatch):\n"
        "    name, promise = 'boastful', 'sure'\n"
        "instance = Mine(hours=3)\n"
        "def make(hours): return Mine(hours=hours)\n"
        "def fail(): raise OSError('no\\nroom')\n"
        "static = StaticWorld\n"
        "number = 7\n",
        "somebodys.py",
    )
    write(tmp_path, "import nonexistent_module\n", "broken.py")
    write(tmp_path, "1 / 0\n", "crashing.py")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("package")
def test_a_policy_in_a_module() -> None:
    for spec, options, hours in (
        ("somebodys:Mine", {}, 8),
        ("somebodys:Mine", {"hours": 9}, 9),
        ("somebodys:instance", {}, 3),
        ("somebodys:make", {"hours": 4}, 4),
    ):
        policy = load_policy(spec, **options)
        assert isinstance(policy, InOrder)
        assert (policy.name, vars(policy)) == ("mine", {"hours": hours})
    assert load_policy("somebodys:static") == load_policy("static")


# -------------------------------------------------------------------------------- mistakes


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("spec", "options", "complaint"),
    [
        ("elastic", {}, "no policy is named 'elastic': choose from static, adaptive, exact"),
        ("", {}, "no policy is named ''"),
        (":Mine", {}, "':Mine' is not module:NAME"),
        ("somebodys:", {}, "'somebodys:' is not module:NAME"),
        ("mine.py:Mine", {}, "give a file alone"),
        ("nowhere.at.all:Mine", {}, "there is no module 'nowhere' on the Python path"),
        ("somebodys.deep:Mine", {}, "there is no module 'somebodys.deep'"),
        ("broken:Mine", {}, "importing broken fails with ModuleNotFoundError: No module named"),
        ("crashing:Mine", {}, "importing crashing fails with ZeroDivisionError"),
        ("somebodys:Yours", {}, r"\(.*somebodys.py\) has no 'Yours'; it has .*Mine"),
        ("somebodys:number", {}, "'somebodys:number' is 7 of type int, not a policy"),
        ("somebodys:Mine", {"minutes": 1}, "does not take these options: got an unexpected"),
        ("somebodys:instance", {"hours": 1}, "does not take options: hours cannot be set"),
        ("somebodys:make", {}, "does not take these options: missing a required argument"),
        ("somebodys:fail", {}, "cannot be made: OSError: no room"),
        ("somebodys:Unnamed", {}, "has the name 'exact' of another policy"),
        ("somebodys:Boastful", {}, "has the promise 'sure': choose one of"),
        ("workload_policy:InOrder", {}, "cannot be made: TypeError: Can't instantiate abstract"),
        ("json:dumps", {}, "does not take these options"),
        ("collections:OrderedDict", {}, "not a policy: it has no layout()"),
    ],
)
def test_a_spec_that_leads_nowhere(spec: str, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(PolicyError, match=complaint.replace("()", r"\(\)")) as caught:
        load_policy(spec, **options)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "",
            "it defines none of layout(*, replicas, grad_accum, survivors), quotas(layout, roles)",
        ),
        ("def quotas(layout roles): pass\n", "line 1 is not Python: invalid syntax"),
        ("\nimport nonexistent_module\n", "line 2 fails with ModuleNotFoundError: No module"),
        ("def f(): return 1 / 0\n\n\nx = f()\n", "line 1 fails with ZeroDivisionError"),
        ("quotas = 3\n", "quotas is 3, not a function: write def quotas(layout, roles)"),
        ("def quotas(layout): pass\n", "quotas(layout) cannot be called as quotas(layout, roles)"),
        (
            "def layout(replicas): pass\n",
            "cannot be called as layout(*, replicas, grad_accum, survivors)",
        ),
        ("def respond(plan): pass\n", "cannot be called as respond(plan, failed, roles)"),
        (QUOTAS + "base = 'elastic'\n", "base is 'elastic': no policy is named 'elastic'"),
        (QUOTAS + "base = 3\n", "base is 3: give the name of a policy"),
        (QUOTAS + "promise = 'sure'\n", "promise is 'sure': choose from exact, batch, none"),
        (
            QUOTAS + "base = 'adaptive'\npromise = 'exact'\n",
            "promise is 'exact', which base 'adaptive' cannot hold",
        ),
        (
            LAYOUT + "base = 'adaptive'\npromise = 'batch'\n",
            "promise is 'batch', which base 'adaptive' cannot hold",
        ),
        (QUOTAS + "name = ''\n", "name is '': give it a name of its own"),
        (QUOTAS + "name = 'static'\n", "has the name 'static' of another policy"),
        (ONE_CLASS + "class More(Mine): pass\n", "it defines 2 policies, Mine, More"),
        (ONE_CLASS + QUOTAS, "it has 'quotas' beside the class Mine: move it into the class"),
        (ONE_CLASS + "promise = 'exact'\n", "it has 'promise' beside the class Mine"),
    ],
)
def test_a_file_that_makes_no_policy(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert complaint in str(caught.value)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolicyError, match=f"there is no such file in {tmp_path}"):
        load_policy(str(tmp_path / "missing.py"))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(PolicyError, match=r"folder\.py: it cannot be read"):
        load_policy(str(tmp_path / "folder.py"))
    (tmp_path / "latin.py").write_bytes(b"# \xe4\n")
    with pytest.raises(PolicyError, match=r"latin\.py: it cannot be read"):
        load_policy(str(tmp_path / "latin.py"))
    (tmp_path / "zero.py").write_bytes(b"x = 1\0\n")
    with pytest.raises(PolicyError, match="is not Python"):
        load_policy(str(tmp_path / "zero.py"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path, QUOTAS)
    with pytest.raises(PolicyError, match=r"'mine' is a file here: give it as mine.py"):
        load_policy("mine")
    assert load_policy("mine.py").name == "mine"


def test_a_file_of_functions_takes_no_options() -> None:
    with pytest.raises(PolicyError, match="does not take options: hours cannot be set"):
        load_policy(str(EXAMPLE), hours=3)


def test_an_installed_package_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "gone-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[workload_policy.policies]\ngone = gone_module:Gone\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PolicyError, match="'gone' is registered as 'gone_module:Gone', which"):
        load_policy("gone")
