"""A new operation in a copy of the table: the demands of the generator, and of the checks after it.

`make lint` runs the same checks on the real table. Some demands are for Rust alone and are not tested
here: CONTRIBUTING.md, "Adding an opcode", lists all of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ["crates/wire/src/messages", "crates/types/src/wire_limits.rs"]
FACTS = {
    "mutates": '"once"',
    "served_by": '"controller"',
    "durable": '"synced"',
    "may_wait": '"no"',
    "urgent": "false",
    "forwarded_to": '"job"',
}
CONTROL = """
[[op]]
name = "RenamePrefix"
code = 0x0209
plane = "control"
auth = "job"
doc = "Renames a prefix."
request = [["job", "u64", "The job."], ["path", "str", "The prefix."]]
reply = []
"""
DATA = """
[[op]]
name = "KvRename"
code = 0x120F
plane = "data"
auth = "grant"
verbs = 2
body = "data"
doc = "Renames a key."
"""
OF_DATA = FACTS | {"served_by": '"server"', "durable": '"no"', "forwarded_to": '"none"'}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the table, of its generators, and of the files that they write."""
    shutil.copytree(ROOT / "protocol", tmp_path / "protocol")
    for name in GENERATED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "rustfmt.toml", tmp_path)
    return tmp_path


def add(tree: Path, operation: str, facts: dict[str, str]) -> None:
    """Adds an operation with these facts, in order of code."""
    table = tree / "protocol/messages.toml"
    head, *ops = table.read_text().split("\n[[op]]\n")
    lines = [f"{name} = {value}" for name, value in facts.items()]
    ops.append(operation.strip().removeprefix("[[op]]\n") + "\n" + "\n".join(lines) + "\n")
    ops.sort(key=lambda op: int(re.findall(r"(?m)^code = (0x\w+)", op)[0], 16))
    table.write_text("\n[[op]]\n".join([head, *ops]))
    assert len(tomllib.loads(table.read_text())["op"]) == len(ops)


def run(tree: Path, script: str, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(tree / "protocol" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_unchanged_table_passes_every_check(tree: Path) -> None:
    assert run(tree, "generate.py", "--check") == (0, "")
    assert run(tree, "vectors.py", "--check") == (0, "")


def test_the_facts_here_are_those_of_the_table() -> None:
    table = tomllib.loads((ROOT / "protocol/messages.toml").read_text())
    assert list(table["facts"]) == list(FACTS)


@pytest.mark.parametrize("fact", FACTS)
def test_operation_without_a_fact_is_refused_by_name(tree: Path, fact: str) -> None:
    add(tree, CONTROL, {name: value for name, value in FACTS.items() if name != fact})
    before = (tree / GENERATED[0] / "op.rs").read_text()
    for arguments in ([], ["--check"]):
        code, said = run(tree, "generate.py", *arguments)
        assert code == 1
        assert f"messages.toml: RenamePrefix: '{fact}' is missing; state one of: " in said
    assert (tree / GENERATED[0] / "op.rs").read_text() == before, "nothing is generated"


def test_operation_without_facts_is_refused_for_all_of_them(tree: Path) -> None:
    add(tree, CONTROL, {})
    code, said = run(tree, "generate.py")
    assert (code, len(said.splitlines())) == (1, len(FACTS))


@pytest.mark.parametrize(
    ("operation", "facts", "complaint"),
    [
        (CONTROL, {"mutates": '"twice"'}, "'mutates' is 'twice'; it is one of: no, again, once"),
        (CONTROL, {"urgent": '"no"'}, "'urgent' is 'no'; it is one of: false, true"),
        (
            CONTROL,
            {"served_by": '"server"', "durable": '"no"'},
            "'control' is served by controller",
        ),
        (CONTROL, {"durable": '"seen"'}, "durable = 'logged' or 'synced'"),
        (CONTROL, {"mutates": '"no"'}, "nothing to sync"),
        (CONTROL, {"may_wait": '"deadline"'}, "only memory servers hold requests"),
        (DATA, OF_DATA | {"served_by": '"controller"'}, "'data' is served by server"),
        (DATA, OF_DATA | {"durable": '"synced"'}, "no change of a memory server"),
        (DATA, OF_DATA | {"may_wait": '"memory"'}, "only the controller allocates"),
        (DATA, OF_DATA | {"forwarded_to": '"all"'}, "only controllers forward requests"),
        (DATA, OF_DATA | {"forwarded_to": '"job"'}, "first field of the request must be the job"),
        (
            CONTROL.replace("control", "link").replace("0x0209", "0x0331"),
            {},
            "only data and control operations have a name for repetitions",
        ),
    ],
)
def test_operation_with_contradictory_facts_is_refused(
    tree: Path, operation: str, facts: dict[str, str], complaint: str
) -> None:
    add(tree, operation, FACTS | facts)
    code, said = run(tree, "generate.py")
    assert code == 1 and complaint in said, said


def test_stated_control_operation_gets_methods_bodies_vectors_and_document(tree: Path) -> None:
    add(tree, CONTROL, FACTS)
    code, said = run(tree, "generate.py", "--check")
    stale = [f"{GENERATED[0]}/{name}.rs" for name in ("op", "facts", "prefixes")]
    assert code == 1 and re.findall(r"(?m)^(\S+) is not what", said) == stale

    assert run(tree, "generate.py")[0] == 0
    assert run(tree, "generate.py", "--check") == (0, "")
    facts = (tree / stale[1]).read_text()
    mutates = facts[facts.index("pub fn mutates") : facts.index("pub fn served_by")]
    once = mutates[: mutates.index("=> Mutates::Once")].split("=>")[-1]
    assert "Op::RegisterJob" in once and "Op::RenamePrefix" in once, "sent once by every client"
    assert "pub struct RenamePrefixRequest" in (tree / stale[2]).read_text()

    code, said = run(tree, "vectors.py", "--check")
    assert code == 1
    found = re.findall(r"(?m)^(\S+) is not what", said)
    assert "PROTOCOL.md" in found and "vectors/messages.json" in found
    assert run(tree, "vectors.py")[0] == 0
    row = "| RenamePrefix | once | controller | synced | no | no | job |"
    assert row in (tree / "protocol/PROTOCOL.md").read_text()
    assert run(tree, "vectors.py", "--check") == (0, "")


def test_stated_data_operation_is_a_mutation_with_a_lane_and_needs_its_layout(tree: Path) -> None:
    add(tree, DATA, OF_DATA)
    assert run(tree, "generate.py")[0] == 0
    op = (tree / GENERATED[0] / "op.rs").read_text()
    assert "Op::KvRename => of(P::Data, A::Grant, 2, LANE)" in op
    code, said = run(tree, "vectors.py", "--check")
    assert code == 1
    for place in ("bodies.py: DATA_SAMPLES", "tables.py: DATA_LAYOUTS"):
        assert f"vectors/{place} and the data operations differ in KvRename" in said
