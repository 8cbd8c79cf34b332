"""Each rule of scripts/tidy on small trees: a case that it reports, and a case that it does not."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
_loader = importlib.machinery.SourceFileLoader("tidy", str(SCRIPTS / "tidy"))
_spec = importlib.util.spec_from_loader("tidy", _loader)
assert _spec is not None
tidy: Any = importlib.util.module_from_spec(_spec)
sys.modules["tidy"] = tidy  # where NamedTuple looks for the module of its class
_loader.exec_module(tidy)

Files = dict[str, str | bytes]
Make = Callable[..., Path]
X = "x" * 150
MANIFEST = '[package]\nname = "a"\n'
PHRASE = "[[phrase]]\npattern = 'what (?:is|was)\\b'\ninstead = 'name it'\nrelative = true\n"


def git(root: Path, *arguments: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *arguments], cwd=root, env=clean, check=True, capture_output=True)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a tree with a crate `a`, and adds it to a new repository."""

    def make(files: Files, config: str = "", executable: str | None = None) -> Path:
        base: Files = {
            "crates/a/Cargo.toml": MANIFEST,
            "crates/a/src/lib.rs": "",
            tidy.CONFIG: config,
        }
        for path, content in {**base, **files}.items():
            place = tmp_path / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
        if executable:
            (tmp_path / executable).chmod(0o755)
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "-A")
        return tmp_path

    return make


def found(root: Path, rule: str | None = None) -> list[str]:
    """`path:line` of each finding of a rule, without ceilings."""
    findings = tidy.check(tidy.Tree(root))
    return [f"{one.path}:{one.line}" for one in findings if rule in (None, one.rule)]


def demanded(root: Path) -> list[str]:
    """Findings that fail the lint, under ceilings."""
    tree = tidy.Tree(root)
    return [str(one) for one in tidy.over_ceilings(tree, tidy.check(tree))]


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "tidy"), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def lines(count: int, line: str = "    work();") -> str:
    return "\n".join([line] * count)


# ---------------------------------------------------------------------------------------- columns


def test_columns_over_the_bounds_are_reported(make: Make) -> None:
    root = make(
        {
            "crates/a/src/lib.rs": f'// {"x" * 108}\nconst A: &str = "{"x" * 90}";\n',
            "protocol/a.py": f'"""{"x" * 108}"""\nA = "{"x" * 100}"\n',
            "README.md": "protocol/a.py\n" + "word " * 23 + "\n",
        }
    )
    expected = ["README.md:2", "crates/a/src/lib.rs:1", "crates/a/src/lib.rs:2"]
    assert found(root, "columns") == [*expected, "protocol/a.py:1", "protocol/a.py:2"]


def test_columns_within_the_bounds_or_exempt_are_not_reported(make: Make) -> None:
    link = f"[name](https://example.org/{'x' * 100}) and https://example.org/{'y' * 100}"
    root = make(
        {
            "crates/a/src/lib.rs": f"// {X[:107]}\n/// | {X} |\nlet a = 1; // {X[:90]}\n",
            "protocol/a.py": f'"""{"x" * 104}"""\n# https://example.org/{"x" * 100}\n',
            "README.md": f"protocol/a.py {link}\n| {'x' * 200} |\n```\n{'x' * 200}\n```\n",
            "crates/a/src/made.rs": f'//! Made by a.py. Do not edit.\nconst A: &str = "{X}";\n',
        }
    )
    assert found(root, "columns") == []


# ------------------------------------------------------------------------- functions and files


def test_long_function_without_an_entry_is_reported(make: Make) -> None:
    root = make(
        {
            "crates/a/src/lib.rs": f"\nfn long(a: [u8; 4]) {{\n{lines(69)}\n}}\n",
            "protocol/a.py": f"def long():\n{lines(70, '    pass')}\n",
        }
    )
    assert found(root, "functions") == ["crates/a/src/lib.rs:2", "protocol/a.py:1"]


def test_function_within_the_bound_or_listed_is_not_reported(make: Make) -> None:
    short, long = f"fn short() {{\n{lines(68)}\n}}\n", f"let a = '}}'; // }}\n{lines(80)}\n}}\n"
    text = f"{short}fn long() {{\n{long}"
    config = "[functions]\n'crates/a/src/lib.rs:long' = 'one arm for each operation'\n"
    assert found(make({"crates/a/src/lib.rs": text}, config), "functions") == []


def test_entry_of_a_function_that_became_short_is_reported(make: Make) -> None:
    root = make({}, "[functions]\n'crates/a/src/lib.rs:gone' = 'one arm for each operation'\n")
    assert found(root, "functions") == [f"{tidy.CONFIG}:1"]


def test_entry_without_a_reason_is_reported(make: Make) -> None:
    text = f"fn long() {{\n{lines(80)}\n}}\n"
    root = make({"crates/a/src/lib.rs": text}, '[functions]\n"crates/a/src/lib.rs:long" = " "\n')
    assert found(root, "functions") == [f"{tidy.CONFIG}:2"]


def test_type_with_many_methods_in_several_blocks_is_reported(make: Make) -> None:
    methods = "\n".join(f"    pub fn m{n}(&self) {{ let f = || {{ }}; f() }}" for n in range(20))
    trait = "\n".join(f"    fn t{n}(&self) {{}}" for n in range(21))
    files: Files = {
        "crates/a/src/lib.rs": f"mod b;\nimpl<'a, T: Into<Vec<u8>>> Big<'a, T> {{\n{methods}\n}}\n",
        "crates/a/src/b.rs": f"impl<'a, T> fmt::Debug for super::Big<'a, T> {{\n{trait}\n}}\n",
    }
    assert found(make(files), "methods") == ["crates/a/src/b.rs:2"]


def test_methods_within_the_bound_or_of_tests_or_of_no_type_are_not_reported(make: Make) -> None:
    methods = "\n".join(f"    fn m{n}(&self) {{ fn inner() {{}} }}" for n in range(40))
    test = "\n".join(f"    fn t{n}(&self) {{}}" for n in range(10))
    files: Files = {
        "crates/a/src/lib.rs": f"""impl Small {{
{methods}
}}
fn free() {{}}
#[cfg(test)]
impl Small {{
{test}
}}
""",
        "crates/b/Cargo.toml": MANIFEST.replace("a", "b"),
        "crates/b/src/lib.rs": f"impl Small {{\n{methods}\n}}\n",
    }
    assert found(make(files), "methods") == []


def test_long_file_without_an_entry_is_reported(make: Make) -> None:
    root = make({"crates/a/src/lib.rs": "\n" * 901}, '[files]\n"gone.rs" = "a table"\n')
    assert found(root, "files") == ["crates/a/src/lib.rs:1", f"{tidy.CONFIG}:2"]


def test_file_within_the_bound_or_listed_is_not_reported(make: Make) -> None:
    files: Files = {"crates/a/src/lib.rs": "mod b;" + "\n" * 900, "crates/a/src/b.rs": "\n" * 1000}
    assert found(make(files, '[files]\n"crates/a/src/b.rs" = "a table"\n'), "files") == []


# ---------------------------------------------------------------------------------------- phrases


def test_phrase_in_prose_is_reported_where_it_begins(make: Make) -> None:
    root = make(
        {
            "crates/a/src/lib.rs": "a!();\n/// What\n/// was what\n/// is.\n/* /**/ what was */\n",
            "protocol/a.py": '"""Returns what is."""\n\nA = 1  # what was\n',
            "README.md": "protocol/a.py\n\n- what is there\n",
        },
        PHRASE,
    )
    expected = ["README.md:3", "crates/a/src/lib.rs:3", "crates/a/src/lib.rs:5"]
    assert found(root, "phrase") == [*expected, "protocol/a.py:1", "protocol/a.py:3"]


def test_phrase_in_the_message_of_an_invariant_is_reported(make: Make) -> None:
    code = 'fn f() {\n    assert!(a, "INV-19: what is sent stays");\n    log("what is sent");\n}\n'
    assert found(make({"crates/a/src/lib.rs": code}, PHRASE), "phrase") == ["crates/a/src/lib.rs:2"]


def test_phrase_in_code_or_across_comments_is_not_reported(make: Make) -> None:
    root = make(
        {
            "crates/a/src/lib.rs": 'let a = "what is"; // what\nlet b = r#"// what is"#;\n// is\n',
            "protocol/a.py": 'a = "# what is"\n',
            "README.md": "protocol/a.py\n~~~\nwhat is\n~~~\nsomewhat is, `what is`\n",
        },
        PHRASE,
    )
    assert found(root, "phrase") == []


# ------------------------------------------------------------------------------------- dead files


def test_rust_file_without_mod_is_reported(make: Make) -> None:
    files: Files = {
        "crates/a/src/lib.rs": "mod used;\n// mod spare;\n",
        "crates/a/src/used.rs": "",
        "crates/a/src/spare.rs": "",
    }
    assert found(make(files), "dead") == ["crates/a/src/spare.rs:1"]


def test_rust_file_that_cargo_or_a_mod_reaches_is_not_reported(make: Make) -> None:
    files: Files = {
        "crates/a/Cargo.toml": MANIFEST + '[[bin]]\nname = "b"\npath = "src/other.rs"\n',
        "crates/a/src/lib.rs": "pub(crate) mod b;\n#[cfg(test)]\nmod tests;\n",
        "crates/a/src/b.rs": '#[path = "elsewhere.rs"]\nmod c;\nmod d;\n',
        "crates/a/src/elsewhere.rs": "",
        "crates/a/src/b/d/mod.rs": "mod e;",
        "crates/a/src/b/d/e.rs": "",
        "crates/a/src/tests.rs": "",
        "crates/a/src/other.rs": "",
        "crates/a/src/bin/c/main.rs": "",
        "crates/a/tests/flow.rs": "mod common;",
        "crates/a/tests/common/mod.rs": "",
    }
    assert found(make(files), "dead") == []


def test_python_module_without_an_import_is_reported(make: Make) -> None:
    files: Files = {
        "python/p/__init__.py": "",
        "python/p/spare.py": "",
        "python/p/__main__.py": "import p",
    }
    assert found(make(files), "dead") == ["python/p/spare.py:1"]


def test_python_module_with_an_import_is_not_reported(make: Make) -> None:
    files: Files = {
        "python/p/__init__.py": "from . import near\nfrom .deep.far import name",
        "python/p/near.py": "",
        "python/p/deep/__init__.py": "",
        "python/p/deep/far.py": "",
        "python/tests/test_p.py": "import p\nimport helper",
        "python/tests/helper.py": "",
        "Makefile": "\tpython protocol/generate.py\n",
        "protocol/generate.py": "",
    }
    assert found(make(files), "dead") == []


def test_page_and_script_without_a_mention_are_reported(make: Make) -> None:
    files: Files = {
        "docs/page.md": "",
        "docs/adr/0007-why.md": "",
        "scripts/a.sh": "",
        "bench/run": "",
    }
    root = make(files, "[kinds]\ntest = []  # docs/page.md\n", executable="bench/run")
    expected = ["bench/run:1", "docs/adr/0007-why.md:1", "docs/page.md:1", "scripts/a.sh:1"]
    assert found(root, "dead") == expected


def test_page_and_script_with_a_mention_or_an_entry_are_not_reported(make: Make) -> None:
    files: Files = {
        "README.md": "[page](docs/page.md), ADR 0007, docs/figures/plot.png, bench/run, a.sh",
        "docs/page.md": "",
        "docs/adr/0007-why.md": "",
        "docs/figures/plot.csv": "",
        "scripts/a.sh": "",
        "bench/run": "",
        "scripts/hook": "",
    }
    config = '[dead]\n"docs/spare.md" = "outside links lead to it"\n'
    files["docs/spare.md"] = ""
    assert found(make(files, config, executable="bench/run"), "dead") == []


# ------------------------------------------------------------------------------ limits and types


def test_bound_outside_of_limits_is_reported(make: Make) -> None:
    text = (
        "const KEYS_MAX: usize = 1;\npub(crate) const LEASE_MS: u32 = 2;\n"
        "const OWN_TIMEOUT: std::time::Duration = Duration::from_secs(1);\n"
    )
    root = make({"crates/a/src/lib.rs": text})
    assert found(root, "limits") == [f"crates/a/src/lib.rs:{line}" for line in (1, 2, 3)]


def test_bound_in_limits_or_in_a_test_is_not_reported(make: Make) -> None:
    text = (
        'mod limits;\nconst SHARE: usize = 1;\nconst MAXIMS: u8 = 1;\nconst NAME_MAX: &str = "a";\n'
        "// const KEYS_MAX: usize = 1;\n"
        "#[cfg(test)]\nmod tests {\n    const KEYS_MAX: usize = 1;\n}\n"
    )
    files: Files = {
        "crates/a/src/lib.rs": text,
        "crates/a/src/limits.rs": "pub const KEYS_MAX: usize = 1;\n",
        "crates/a/tests/flow.rs": "const KEYS_MAX: usize = 1;\n",
    }
    assert found(make(files), "limits") == []


def test_type_name_in_three_files_is_reported(make: Make) -> None:
    files: Files = {
        "crates/a/src/lib.rs": "mod b;\nmod c;\nstruct State;\n",
        "crates/a/src/b.rs": "enum State {}\n",
        "crates/a/src/c.rs": "trait State {}\n",
    }
    assert found(make(files), "types") == ["crates/a/src/b.rs:1"]


def test_type_name_in_two_files_and_in_tests_is_not_reported(make: Make) -> None:
    files: Files = {
        "crates/a/src/lib.rs": "mod b;\nstruct State;\nmod c { struct State; }\n",
        "crates/a/src/b.rs": "enum State {}\n#[cfg(test)]\nmod tests;\n",
        "crates/a/src/b/tests.rs": "struct State;\n",
        "crates/a/tests/flow.rs": "struct State;\n",
    }
    assert found(make(files), "types") == []


# ------------------------------------------------------------------------------------- binaries


def test_binary_without_an_entry_is_reported(make: Make) -> None:
    files: Files = {"README.md": "a.png", "a.png": b"\x89PNG\0", "b.txt": b"\xff\xfe"}
    assert found(make(files), "binaries") == ["a.png:1", "b.txt:1"]


def test_listed_binary_text_and_untracked_file_are_not_reported(make: Make) -> None:
    config = '[binaries]\n"figures/*.png" = "plots"\n'
    root = make({"figures/a.png": b"\0", "README.md": "grün"}, config)
    (root / "untracked.bin").write_bytes(b"\0")
    assert found(root, "binaries") == []


# ------------------------------------------------------------------------------------- ceilings

TWO = "// what is\n// what was\n"
CEILING = PHRASE + "[ceilings.phrase]\na = {}\n"


def test_findings_at_the_ceiling_pass(make: Make) -> None:
    root = make({"crates/a/src/lib.rs": TWO}, CEILING.format(2))
    assert demanded(root) == []
    assert run(root).returncode == 0
    assert run(root, "--all", "phrase", "a").stdout.count("what") == 2


def test_findings_over_the_ceiling_fail_and_say_how_many(make: Make) -> None:
    (message,) = demanded(make({"crates/a/src/lib.rs": TWO}, CEILING.format(1)))
    assert message.startswith(f"{tidy.CONFIG}:6: phrase: a has 2 findings, 1 over its ceiling")


def test_findings_under_the_ceiling_fail_until_it_is_lowered(make: Make) -> None:
    root = make({"crates/a/src/lib.rs": TWO}, CEILING.format(9) + "b = 3\n[kinds]\n")
    assert len(demanded(root)) == 2
    assert run(root, "--lower").returncode == 0
    assert (root / tidy.CONFIG).read_text() == CEILING.format(2) + "[kinds]\n"


def test_lower_raises_no_ceiling(make: Make) -> None:
    root = make({"crates/a/src/lib.rs": TWO}, CEILING.format(1))
    assert run(root, "--lower").returncode == 1
    assert (root / tidy.CONFIG).read_text() == CEILING.format(1)


def test_changed_lists_findings_on_changed_lines_alone(make: Make) -> None:
    root = make({"crates/a/src/lib.rs": TWO}, CEILING.format(3))
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    (root / "crates/a/src/lib.rs").write_text(TWO + "// what is new\n")
    output = json.loads(run(root, "--changed", "HEAD", "--json").stdout)
    assert [(one["line"], one["rule"]) for one in output] == [(3, "phrase")]


# -------------------------------------------------------------------- command line and figures


def test_clean_tree_ends_with_0_and_findings_with_1(make: Make) -> None:
    root = make({})
    assert "rules:" in run(root, "--help").stdout
    assert run(root, "--all", "phrases").returncode == 2
    assert (run(root).returncode, run(root).stdout) == (0, "tidy: clean\n")
    (root / "crates/a/src/lib.rs").write_text("const KEYS_MAX: u8 = 1;\n")
    done = run(root)
    assert done.returncode == 1
    assert done.stdout.startswith("crates/a/src/lib.rs:1: limits: KEYS_MAX is a bound; define it")


@pytest.mark.parametrize(
    "config", ["[kinds", "[[phrase]]\npattern = '('\n", "[ceilings.none]\na = 1\n"]
)
def test_mistake_in_the_configuration_ends_with_2(make: Make, config: str) -> None:
    done = run(make({}, config))
    assert (done.returncode, done.stdout) == (2, "")
    assert tidy.CONFIG in done.stderr


def test_figures_count_inline_tests_as_tests(make: Make) -> None:
    text = (
        "//! What is\n//! what is.\npub struct A;\n\n"
        "pub fn a(b: Option<u8>) {\n    assert!(b.is_some());\n"
        "    b.unwrap();\n}\n#[cfg(test)]\nmod tests {\n    fn t() { assert!(true) }\n}\n"
    )
    files: Files = {"crates/a/src/lib.rs": text, "crates/a/tests/b.rs": "// what is\n\n"}
    row = json.loads(run(make(files, PHRASE), "--figures", "--json").stdout)["a"]
    assert (row["product"], row["test"], row["bench"], row["files"]) == (8, 6, 0, 1)
    assert (row["fn p50/p90/max"], row["pub items"], row["types"]) == ("4/4/4", 2, 1)
    assert (row["assert/k"], row["expect etc./k"], row["comment %"]) == (125.0, 125.0, 25)
    assert row["free relatives per 100 comment lines"] == 66.7
