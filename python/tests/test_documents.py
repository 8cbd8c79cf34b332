"""Reference pages are complete and match the code: errors, limits, calls."""

from __future__ import annotations

import re
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from pages import BINARY, matches

import honeycomb
from honeycomb import errors, mapreduce

MESSAGES = tomllib.loads((REPOSITORY / "protocol" / "messages.toml").read_text(encoding="utf-8"))
#: Statuses that are not errors.
NO_ERRORS = ("Ok", "Notice")
SOURCES = (".rs", ".py")


def document(name: str) -> str:
    return (REPOSITORY / "docs" / name).read_text(encoding="utf-8")


def source(name: str) -> str:
    return (REPOSITORY / "crates" / name).read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------ errors


def exit_codes() -> dict[str, int]:
    """The exit code of each status, from ``Exit::of``; other statuses exit with 1."""
    text = source("honeycomb/src/failure.rs")
    numbers = {
        one[1]: int(one[2]) for one in re.finditer(r"^    (\w+) = (\d),$", text, re.MULTILINE)
    }
    assert numbers["Done"] == 0 and numbers["Failed"] == 1
    arms = text.split("pub fn of(status: Status)")[1].split("_ => Exit::Failed")[0]
    found: dict[str, int] = {}
    for statuses, end in re.findall(r"((?:\|?\s*Status::\w+\s*)+)=> (?:\{\s*)?Exit::(\w+)", arms):
        for name in re.findall(r"Status::(\w+)", statuses):
            found[name] = numbers[end]
    assert len(found) > 20
    return found


def python_base(name: str) -> str:
    """The built-in exception class that a status's exception also derives from, if any."""
    for base in getattr(errors, name).__mro__[1:]:
        if base.__module__.startswith("honeycomb") or base in (Exception, BaseException, object):
            continue
        module = "" if base.__module__ == "builtins" else base.__module__.lstrip("_") + "."
        return f", also a `{module}{base.__name__}`"
    return ""


def standing_of(name: str, code: int) -> str:
    """The line under a status's heading."""
    end = exit_codes().get(name, 1)
    return f"Code {code}. Python `errors.{name}`{python_base(name)}. Exit code {end}."


def sections() -> dict[str, str]:
    """The text under each heading of a status."""
    parts = re.split(r"^### (\w+)$", document("errors.md"), flags=re.MULTILINE)
    return {
        name: re.split(r"^## ", text, flags=re.MULTILINE)[0]
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_every_status_is_explained() -> None:
    found = sections()
    statuses = {one["name"]: one["code"] for one in MESSAGES["status"]}
    for name, code in statuses.items():
        if name in NO_ERRORS:
            assert f"`{name}`" in document("errors.md"), name
            continue
        assert name in found, f"docs/errors.md does not explain {name}"
        text = found[name]
        assert standing_of(name, code) in text, f"{name} shall have: {standing_of(name, code)}"
        for point in ("What happened", "Why", "What to do"):
            assert re.search(rf"^- \*{point}\.\* .{{4}}", text, re.MULTILINE), (
                f"{name} lacks: {point}"
            )
    assert set(found) <= set(statuses), "docs/errors.md explains what there is not"


def test_every_exception_is_told_of() -> None:
    """Also the exceptions that are not statuses."""
    text = document("errors.md")
    for name, cls in vars(errors).items():
        if isinstance(cls, type) and issubclass(cls, errors.HoneycombError):
            assert re.search(rf"\b{name}\b", text), f"docs/errors.md does not name errors.{name}"


def examples() -> dict[str, str]:
    """The example messages of the statuses that have one."""
    found = {}
    for name, text in sections().items():
        example = re.search(r"^- \*For example\.\* `(.+?)`$", text, re.MULTILINE | re.DOTALL)
        if example:
            found[name] = " ".join(example[1].split())
    return found


def _fill(kv: honeycomb.Kv) -> None:
    # Keys of one tag share a slot, which is never split.
    for number in range(100):
        kv[f"{{hot}}{number}"] = bytes(4000)


def _swap_in_a_batch(kv: honeycomb.Kv) -> None:
    with kv.atomic() as batch:
        batch.compare_and_swap("color", b"green", b"red")


def _expire(client: honeycomb.Client) -> None:
    with client.job(lease=0.3, keep=False) as job:
        job.kv("short:kv")
        pause, deadline = threading.Event(), time.monotonic() + 10
        while time.monotonic() < deadline:
            job.lease("short")  # reading does not renew; it raises when the lease has ended
            pause.wait(0.01)


@pytest.fixture
def provoked(cluster: honeycomb.Client) -> Iterator[dict[str, Callable[[], Any]]]:
    """Calls that raise the errors whose messages the page shows."""
    address = cluster.address
    with cluster.job("wc") as job, cluster.job("small", quota_blocks=1) as small:
        kv, file = job.kv("notes:kv"), job.file("logs:today")
        queue, closed = job.queue("tasks:todo", max_items=2), job.queue("tasks:done")
        kv["color"] = b"blue"
        file.seal()
        small.kv("a:a")
        job.kv("notes:gone")
        job.create_addr_prefix("T1", job_verbs="")
        job.create_addr_prefix("T2")
        job.create_kv("T1:kv")

        def overfill() -> None:
            queue.put_many([b"1", b"2", b"3"], timeout=0)

        def closed_twice() -> None:
            queue.close()
            queue.put(b"")

        def removed() -> None:
            job.remove("notes:kv")
            kv.get("color")

        yield {
            "Unauthenticated": lambda: honeycomb.connect(address, token="00" * 32),
            "PermissionDenied": lambda: job.handle("T2").attach().open_kv("T1:kv"),
            "OutOfMemory": lambda: job.create_kv("notes:big", blocks=1000),
            "QuotaExceeded": lambda: small.kv("a:b"),
            "ValueTooLarge": lambda: kv.upsert("color", bytes(10_000)),
            "KeyTooLarge": lambda: kv.put(bytes(3000), b""),
            "NotFound": lambda: job.open_kv("notes:kw"),
            "KeyNotFound": lambda: kv["colour"],
            "KeyExists": lambda: kv.add("color", b""),
            "CompareFailed": lambda: _swap_in_a_batch(kv),
            "Sealed": lambda: file.append(b""),
            "NotSealed": lambda: job.create_file("notes:open").map(),
            "AlreadyExists": lambda: job.create_kv("notes:kv"),
            "WrongKind": lambda: job.open_file("notes:kv"),
            "Cycle": lambda: job.create_hierarchy({"A": "B", "B": "A"}),
            "UnknownParent": lambda: job.create_hierarchy({"A": "Q"}),
            "UnknownJob": lambda: cluster.attach("wd"),
            "InvalidArgument": lambda: cluster.job(lease=0.01),
            "LeaseExpired": lambda: _expire(cluster),
            "QueueEmpty": lambda: queue.get(timeout=0.1),
            "QueueFull": overfill,
            "QueueClosed": closed_twice,
            "FlushUnavailable": lambda: job.create_addr_prefix(
                "T3", on_expiry=honeycomb.Flush("out")
            ),
            "Unavailable": lambda: honeycomb.connect("127.0.0.1:1", token="00", timeout=0.5),
            "BlockFull": lambda: _fill(kv),
            "Removed": removed,
        }
        closed.close()


def test_messages_are_as_shown(provoked: dict[str, Callable[[], Any]]) -> None:
    shown = examples()
    # One needs a lost reply and ten seconds, the other a failing disk: the simulator and the tests
    # of the controller's log cover them.
    assert set(shown) - set(provoked) == {"OutcomeUnknown", "LogFailed"}
    for name, call in provoked.items():
        with pytest.raises(getattr(errors, name)) as raised:
            call()
        assert matches(shown[name], str(raised.value)), f"{name}: {raised.value}"


# ------------------------------------------------------------------------------------------ limits

UNITS = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def _value(expression: str, known: dict[str, Any]) -> int | float | None:
    """The value of a constant's expression, durations in milliseconds; ``None`` if it is not a
    number."""
    for unit, milliseconds in (("millis", 1), ("secs", 1000)):
        expression = re.sub(
            rf"Duration::from_{unit}\((.+)\)", rf"(\1) * {milliseconds}", expression
        )
    expression = re.sub(r" as \w+|(?<=\d)_(?=\d)", "", expression).replace("/", "//")
    try:
        value = eval(expression, {"__builtins__": {}}, known | UNITS)
    except (NameError, SyntaxError, TypeError):
        return None
    return value if isinstance(value, int | float) else None


def constants(text: str, known: dict[str, Any]) -> dict[str, Any]:
    """Numeric constants of a source file, in Rust or Python."""
    found: dict[str, Any] = {}
    rust = r"^\s*(?:pub(?:\(\w+\))? )?const (\w+): \w+ = (.+?);"
    python = r"^([A-Z_]+): Final = (.+?)(?:  #.*)?$"
    for one in re.finditer(f"{rust}|{python}", text, re.MULTILINE):
        name, expression = one[1] or one[3], one[2] or one[4]
        value = _value(expression, known | found)
        if value is not None:
            found[name] = value
    return found


WIRE_LIMITS = {name: limit["value"] for name, limit in MESSAGES["limits"].items()}
LIMITS = WIRE_LIMITS | constants(source("types/src/limits.rs"), WIRE_LIMITS)


def written(value: float) -> set[str]:
    """The forms that a number may have in the table; a fraction in per cent."""
    if isinstance(value, float):
        return {f"{value * 100:g} %"}
    found = {f"{value:,}" if value >= 10_000 else str(value), f"1/{value}"}
    for unit, size in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
        if value % size == 0:
            found |= {f"{value // size} {unit}"}
    for unit, size in (("ms", 1), ("s", 1000), ("min", 60_000)):
        found |= {f"{value / size:g} {unit}"}
    words = {3_600_000: "an hour", 86_400_000: "a day", 604_800_000: "a week"}
    return found | {words.get(value, str(value))}


def rows(text: str) -> Iterator[list[str]]:
    """Rows of the tables of a page, without header rows."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        head = at + 1 < len(lines) and lines[at + 1].startswith("| ---")
        if line.startswith("| ") and not line.startswith("| ---") and not head:
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_every_limit_is_listed_with_its_number() -> None:
    seen = set()
    for what, number, names, *_ in rows(document("limits.md")):
        home = re.search(r"in `([\w/.]+)`", names)
        path = REPOSITORY / home[1] if home else None
        known = constants(path.read_text(encoding="utf-8"), LIMITS) if path else LIMITS
        for name in re.findall(r"`([A-Z_]{3,})`", names):
            assert name in known, f"{what}: {name} is nowhere"
            seen.add(name)
            right = written(known[name])
            assert any(
                re.search(rf"(?<![\d,.]){re.escape(text)}(?!\d)", number) for text in right
            ), f"{what}: {name} is {known[name]}, not {number}"
    missing = set(LIMITS) - seen - set(UNITS)
    assert not missing, f"docs/limits.md does not list {missing}"


def test_numbers_are_compared() -> None:
    """The check above fails for wrong numbers."""
    assert LIMITS["WAIT_MAX_MS"] == 60_000 and LIMITS["SERVER_SILENCE"] == 2500
    assert LIMITS["READS_MAX"] == 4096 and LIMITS["ACTIVITY_INTERVAL"] == 50
    assert "60 s" in written(60_000)
    assert "61 s" not in written(60_000)
    assert not any(text in "128 KiB" for text in written(256 << 10))


# ------------------------------------------------------------------------------------------- calls

CLASSES = ("Client", "Job", "Kv", "HoneyFile", "Queue", "Custom", "Listener", "Reservation")
#: Fields that describe an object and are not operations.
NO_CALLS = {"Reservation.item", "Reservation.deliveries"}


def listed(pattern: str) -> set[str]:
    """All code in the page's tables that matches a pattern."""
    code = [one for row in rows(document("calls.md")) for cell in row for one in CODE.findall(cell)]
    return {found[0] for one in code if (found := re.match(pattern, one))}


CODE = re.compile(r"`([^`]+)`")


def test_names_in_python_exist() -> None:
    found = listed(r"(?:[A-Z]\w+|honeycomb|mapreduce)\.\w+$")
    for name in found:
        owner, _, attribute = name.partition(".")
        place = {"honeycomb": honeycomb, "mapreduce": mapreduce}.get(owner)
        place = getattr(honeycomb, owner) if place is None else place
        assert hasattr(place, attribute), f"docs/calls.md names {name}, which is not there"
    public = {
        f"{cls}.{name}"
        for cls in CLASSES
        for name in dir(getattr(honeycomb, cls))
        if not name.startswith("_")
    }
    missing = public - found - NO_CALLS
    assert not missing, f"docs/calls.md does not list {sorted(missing)}"
    assert public >= NO_CALLS


def test_names_in_rust_exist() -> None:
    files = (REPOSITORY / "crates" / "client" / "src").glob("*.rs")
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    found = listed(r"(?:Client|Kv|File|Queue|Custom|Structure|Listener)::\w+$")
    assert len(found) > 50
    # Methods, by the type of their `impl` block.
    there = {
        f"{one[1]}::{name}"
        for one in re.finditer(r"^impl (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
        for name in re.findall(r"^    pub fn (\w+)", one[2], re.MULTILINE)
    }
    assert found <= there, f"docs/calls.md names {sorted(found - there)}, which are not there"


#: Names of objects on the pages for users of other systems.
VARIABLES = {
    "file": "HoneyFile",
    "hc": "Client",
    "job": "Job",
    "kv": "Kv",
    "listener": "Listener",
    "queue": "Queue",
}


def coming_from() -> list[Path]:
    pages = sorted((REPOSITORY / "docs").glob("coming-from-*.md"))
    assert len(pages) == 3
    return pages


def test_translations_exist() -> None:
    """Python and command lines in the tables of the pages for users of other systems."""
    for page in coming_from():
        calls, commands = 0, set()
        for _, python, command, *_ in rows(page.read_text(encoding="utf-8")):
            for code in CODE.findall(python):
                for variable, name in re.findall(r"\b([a-z]+)\.([a-z]\w+)", code):
                    if variable in VARIABLES:
                        calls += 1
                        cls = getattr(honeycomb, VARIABLES[variable])
                        assert hasattr(cls, name), f"{page.name}: {code}"
            commands |= {one for one in CODE.findall(command) if not one.startswith("-")}
        assert calls > 10
        known = {f"honeycomb {' '.join(one)}" for one in commands_listed()}
        assert commands <= known | {"honeycomb kv"}, f"{page.name}: {sorted(commands - known)}"


def commands_listed() -> set[tuple[str, ...]]:
    """The commands of the table of calls."""
    return {tuple(name.split()[1:]) for name in listed(r"honeycomb [a-z ]+$")}


def test_commands_exist() -> None:
    found = commands_listed()
    for command in found:
        told = subprocess.run(
            [BINARY, *command, "--help"], capture_output=True, text=True, timeout=60, check=False
        )
        usage = f"Usage: honeycomb {' '.join(command)}"
        assert told.returncode == 0 and usage in told.stdout, f"there is no {' '.join(command)}"
    top = subprocess.run([BINARY, "--help"], capture_output=True, text=True, timeout=60, check=True)
    names = re.findall(r"^  ([a-z]+)  ", top.stdout.split("Options:")[0], re.MULTILINE)
    missing = {name for name in names if not any(one[0] == name for one in found)} - {"help"}
    assert not missing, f"docs/calls.md does not list {sorted(missing)}"


def test_files_that_pages_name_exist() -> None:
    """On any page: a path with a known ending, or the path of a page."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
    for page in pages:
        text = re.sub(
            r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        for path in re.findall(
            r"`((?:crates|docs|python|protocol|verify|examples)/[\w/.-]+)`", text
        ):
            # Decision records may be named by number.
            there = any(REPOSITORY.glob(f"{path}*" if "/adr/" in path else path.rstrip("/")))
            assert there, f"{page.name} names {path}, which is not there"


def test_things_that_pages_name_are_in_the_files_that_they_name() -> None:
    """``Name`` in ``file``, and ``file`` followed by a ``Name``."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")]
    name, file = r"`((?:\w+::)*\w+)`", r"`([\w/-]+\.(?:rs|py))`"
    checked = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        pairs = [(one, where) for one, where in re.findall(f"{name} in {file}", text)]
        pairs += [(one, where) for where, one in re.findall(f"{file} {name}", text)]
        for one, where in pairs:
            if (path := REPOSITORY / where).is_file():
                there = re.search(rf"\b{one.split('::')[-1]}\b", path.read_text(encoding="utf-8"))
                assert there, f"{page.name} names {one} in {where}, which has none"
                checked += 1
    assert checked > 100


def test_tests_of_invariants_exist() -> None:
    folders = ("crates", "verify", "examples", "python/tests")
    files = [one for at in folders for one in (REPOSITORY / at).rglob("*") if one.suffix in SOURCES]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    there = set(re.findall(r"\b(?:fn|def) (\w+)", code))
    for number, *_, tests in rows(document("invariants.md")):
        missing = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)`", tests)) - there
        assert not missing, f"INV-{number} is tested by {sorted(missing)}, which are not there"


def test_every_planted_bug_is_listed_with_its_invariant_and_where_it_is() -> None:
    text = source("types/src/bug.rs").split("impl Bug {")[0]
    bugs = {
        name: re.findall(r"INV-(\d+)", why)
        for why, name in re.findall(r"((?:\s*///.*\n)+)\s*(\w+) = \d+,", text)
    }
    told = {}
    for what, invariant, where in (
        row for row in rows(document("testing.md")) if len(row) == 3 and row[1].startswith("INV-")
    ):
        for name in re.findall(r"`(\w+)`", what.split(":")[0]):
            told[name] = re.findall(r"\d+", invariant)
            files = re.findall(r"`([^`]+)`", where)
            planted = [(REPOSITORY / file).read_text(encoding="utf-8") for file in files]
            assert files and all(f"Bug::{name}" in one for one in planted), f"{name}: {where}"
    assert set(told) == set(bugs), f"docs/testing.md: {sorted(set(told) ^ set(bugs))}"
    wrong = {name for name, invariant in told.items() if invariant != bugs[name]}
    assert not wrong, f"other invariants than crates/types/src/bug.rs has: {sorted(wrong)}"


def manifest(folder: str) -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / folder / "Cargo.toml").read_text())


def test_asynchronous_code_stays_in_its_crate() -> None:
    """ADR 0024: no other crate names a runtime or a client of stores."""
    names = {"tokio", "hyper", "reqwest", "rustls", "object_store", "futures-util"}
    uses = {
        folder: names & set(manifest(folder).get("dependencies", {}))
        for folder in manifest(".")["workspace"]["members"]
    }
    assert "tokio" in uses.pop("crates/tiers")
    assert not any(uses.values()), uses


def test_crates_use_what_the_architecture_says() -> None:
    workspace = manifest(".")["workspace"]["members"]
    manifests = {folder: manifest(folder) for folder in workspace}
    folder_of = {found["package"]["name"]: folder for folder, found in manifests.items()}
    page = (REPOSITORY / "ARCHITECTURE.md").read_text()
    listed = dict(re.findall(r"^- `([a-z0-9/]+)` \(([^)]*)\)", page, re.MULTILINE))
    # Custom structures are examples, which the page describes in a sentence.
    crates = [folder for folder in workspace if not folder.startswith("examples/")]
    assert sorted(set(listed) & set(workspace)) == sorted(crates)
    for folder in crates:
        uses = {
            Path(folder_of[name]).name
            for name in manifests[folder].get("dependencies", {})
            if name in folder_of
        }
        said = (
            set()
            if listed[folder] == "uses no other crate"
            else set(re.split(r",\s+", listed[folder]))
        )
        assert said == uses, folder
