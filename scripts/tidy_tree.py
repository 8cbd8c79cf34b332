"""The files that scripts/tidy checks. A small tokenizer divides Rust and Python into code and comments."""

from __future__ import annotations

import ast
import posixpath
import re
import subprocess
import tomllib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

CONFIG = "scripts/tidy.toml"
TYPE = re.compile(r"\b(?:struct|enum|union|trait)\s+([A-Z]\w*)")


class Mistake(Exception):
    """A mistake in the configuration or on the command line."""


class Function(NamedTuple):
    name: str
    first: int
    last: int
    kind: str

    @property
    def length(self) -> int:
        return self.last - self.first + 1


class Module(NamedTuple):
    """A declaration `mod name;` in a Rust file, with its attributes #[path] and #[cfg(test)]."""

    name: str
    path: str | None
    test: bool


@dataclass
class Source:
    """A text file. `code` has blanks in place of comments and strings; `prose` has the text of the comments
    on each line, or None for a line without."""

    path: str
    text: str
    executable: bool
    kind: str
    code: str = ""
    prose: list[str | None] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    tests: list[tuple[int, int]] = field(
        default_factory=list
    )  # offsets of items under #[cfg(test)]
    modules: list[Module] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    # Lines and texts of the messages of asserted invariants.
    messages: list[tuple[int, str]] = field(default_factory=list)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def starts(self) -> list[int]:
        return [0] + [one.end() for one in re.finditer("\n", self.text)]

    def line(self, offset: int) -> int:
        return bisect_right(self.starts, offset)

    @cached_property
    def generated(self) -> bool:
        return "Do not edit." in self.text[:400]

    def kind_at(self, offset: int) -> str:
        tested = any(first <= offset < last for first, last in self.tests)
        return "test" if tested else self.kind

    @cached_property
    def product(self) -> str:
        """The code of the product, with blanks in place of test code."""
        code = self.code if self.kind == "product" else ""
        for first, last in self.tests if code else ():
            code = code[:first] + blank(code[first:last]) + code[last:]
        return code

    def comments(self, *kinds: str) -> int:
        """The number of lines with a comment and no code, in code of these kinds."""
        lines = zip(self.prose, self.lines, self.code.split("\n"), self.starts, strict=False)
        offsets = [
            at
            for prose, line, code, at in lines
            if prose is not None and line.strip() and not code.strip()
        ]
        return sum(self.kind_at(at) in kinds for at in offsets)

    @cached_property
    def sizes(self) -> Counter[str]:
        """Lines by kind."""
        tests = sum(self.line(last - 1) - self.line(first) + 1 for first, last in self.tests)
        return Counter({self.kind: len(self.lines) - tests}) + Counter({"test": tests})

    def add_prose(self, offset: int, text: str) -> None:
        for number, part in enumerate(text.split("\n"), self.line(offset) - 1):
            self.prose[number] = (self.prose[number] or "") + part


def blank(text: str) -> str:
    """As many spaces as the text has characters, with its line breaks."""
    return "\n".join(" " * len(line) for line in text.split("\n"))


# ------------------------------------------------------------------------------------------- Rust

RUST_TOKEN = re.compile(
    r"""//[^\n]*|/\*|(?<![A-Za-z0-9_])[bc]?r(\#*)".*?"\1|"[^"\\]*(?:\\.[^"\\]*)*"|"""
    r"""'(?:\\(?:x..|u\{[^}]*\}|.)|[^\\'\n])'""",
    re.DOTALL,
)
TEST = re.compile(r"#\[cfg\(test\)\]")
# The literal at the start lets the engine skip to it, ten times as fast as a `\b` there.
FN = re.compile(r"fn(?<!\wfn)\s+(\w+)")
# `impl Type {`, `impl<T> Type<T> {`, `impl Trait<T> for module::Type<T> where ... {`.
GENERICS = r"<(?:->|[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>"
IMPL = re.compile(
    rf"^impl\b(?:{GENERICS})?\s+(?:[^;{{]+?\bfor\s+)?(?:&(?:'\w+ )?(?:mut )?)?(?:\w+::)*"
    r"(?P<type>[A-Z]\w*)[^;{]*\{",
    re.MULTILINE,
)
IMPL_TOKEN = re.compile(r"[{}]|\bfn\s+\w+")
MOD = re.compile(r"mod(?<!\wmod)\s+(\w+)\s*;")
BEFORE_MOD = re.compile(r"((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([^)]*\))?\s+)?$")
BRACKET = re.compile(r"[;{}()\[\]]")
LAYOUT = re.compile(
    r"(src/(lib|main)|build|(src/bin|tests|examples|benches)/([^/]+|[^/]+/main))\.rs"
)


def comment_end(text: str, at: int) -> int:
    """The end of the block comment at `at`. Block comments nest in Rust."""
    depth = 0
    for one in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if one[0] == "/*" else -1
        if depth == 0:
            return one.end()
    return len(text)


def item_end(code: str, at: int) -> int:
    """The end of the item at `at`: its closing brace, or its semicolon."""
    depth = 0
    for one in BRACKET.finditer(code, at):
        if one[0] in "{([":
            depth += 1
        elif one[0] != ";":
            depth -= 1
        if depth <= 0 and one[0] in "};":
            return one.end()
    return len(code)


def rust_methods(code: str) -> Iterator[tuple[str, int]]:
    """The type and the offset of each method in the `impl` blocks of this code."""
    for one in IMPL.finditer(code):
        last = item_end(code, one.start())
        depth = 0
        for token in IMPL_TOKEN.finditer(code, one.end() - 1, last):
            if token[0] in "{}":
                depth += 1 if token[0] == "{" else -1
            elif depth == 1:
                yield one["type"], token.start()


def read_rust(source: Source) -> None:
    text, parts, at = source.text, [], 0
    source.prose = [None] * len(source.lines)
    while found := RUST_TOKEN.search(text, at):
        first, last = found.span()
        if found[0] == "/*":
            last = comment_end(text, first)
        if found[0].startswith('"INV-'):
            message = re.sub(r"\{[^{}]*\}", "_", found[0].strip('"'))  # arguments are code
            source.messages.append((source.line(first), message))
        if found[0].startswith(("//", "/*")):
            source.add_prose(first, re.sub(r"^(//[/!]?|/\*[*!]?)|\*/$", "", text[first:last]))
        parts += [text[at:first], blank(text[first:last])]
        at = last
    source.code = code = "".join(parts) + text[at:]
    for found in TEST.finditer(code):
        if not source.tests or found.start() >= source.tests[-1][1]:
            source.tests.append((found.start(), item_end(code, found.end())))
    for found in FN.finditer(code):
        last = item_end(code, found.end())
        if code[last - 1] == "}":
            kind, lines = (
                source.kind_at(found.start()),
                (source.line(found.start()), source.line(last - 1)),
            )
            source.functions.append(Function(found[1], *lines, kind))
    for found in MOD.finditer(code):
        before = BEFORE_MOD.search(code, max(0, found.start() - 300), found.start())
        attributes = text[slice(*before.span(1))] if before else ""
        path = re.search(r'#\[path = "([^"]+)"\]', attributes)
        test = bool(TEST.search(attributes)) or source.kind_at(found.start()) == "test"
        source.modules.append(Module(found[1], path and path[1], test))


def follow_modules(sources: dict[str, Source]) -> set[str]:
    """The Rust files that Cargo builds: its roots, and the files that `mod` reaches from them. A file that
    only tests reach becomes test code."""
    packages = {
        path[: -len("Cargo.toml")]: one.text
        for path, one in sources.items()
        if path.endswith("Cargo.toml")
    }
    roots = {
        path
        for path in sources
        for package in packages
        if path.startswith(package) and LAYOUT.fullmatch(path[len(package) :])
    }
    for package, manifest in packages.items():
        roots |= {
            package + path for path in re.findall(r'^path = "(.*\.rs)"', manifest, re.MULTILINE)
        }
    tested: dict[str, bool] = {}  # whether only tests reach a file
    todo = [(root, False) for root in roots & sources.keys()]
    while todo:
        path, test = todo.pop()
        if path not in sources or (tested.get(path, True) <= test and path in tested):
            continue
        tested[path] = test
        folder = posixpath.dirname(path)
        inside = folder if path in roots or path.endswith("/mod.rs") else path.removesuffix(".rs")
        for name, place, test_module in sources[path].modules:
            places = (
                [f"{folder}/{place}"]
                if place
                else [f"{inside}/{name}.rs", f"{inside}/{name}/mod.rs"]
            )
            todo += [(posixpath.normpath(one), test or test_module) for one in places]
    for path, test in tested.items():
        if test and sources[path].kind == "product":
            sources[path].kind = "test"
            sources[path].functions = [one._replace(kind="test") for one in sources[path].functions]
    return set(tested)


# --------------------------------------------------------------------------- Python and Markdown

PYTHON_TOKEN = re.compile(
    r'#[^\n]*|[rbfuRBFU]{0,2}("""|\'\'\')(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
    re.DOTALL,
)
FENCE = re.compile(r"\s*(`{3,}|~{3,})")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node, without their expressions."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, part, []):
            yield child
            yield from statements(child)


def read_python(source: Source) -> None:
    source.prose = [None] * len(source.lines)
    code = list(source.lines)
    for found in PYTHON_TOKEN.finditer(source.text):
        if found[0].startswith("#"):
            source.add_prose(found.start(), found[0].lstrip("#:!"))
            number = source.line(found.start()) - 1
            code[number] = code[number].removesuffix(found[0])
    package = source.path.split("/")[:-1]
    for node in statements(ast.parse(source.text, source.path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.lineno, node.end_lineno or 0)
            source.functions.append(Function(node.name, *lines, source.kind))
        elif isinstance(node, ast.Import):
            source.imports |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base += node.module.split(".") if node.module else []
            source.imports |= {".".join(base), *(".".join([*base, one.name]) for one in node.names)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            for number in range(node.lineno - 1, node.end_lineno or 0):
                source.prose[number], code[number] = source.lines[number].strip(), ""
    source.code = "\n".join(code)


def read_markdown(source: Source) -> None:
    fence = ""
    for line in source.lines:
        mark = FENCE.match(line)
        source.prose.append(None if fence or mark else line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]


# ------------------------------------------------------------------------------------------- tree


class Tree:
    """The tracked files below `root`, and the configuration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self.config_text = (root / CONFIG).read_text(encoding="utf-8")
            self.config: dict[str, Any] = tomllib.loads(self.config_text)
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise Mistake(f"{CONFIG} cannot be read: {error}") from error
        self.sources: dict[str, Source] = {}
        self.binaries: list[str] = []
        for entry in self.git("ls-files", "--stage", "-z").split("\0"):
            path = entry.partition("\t")[2]
            if path and (root / path).is_file():  # a deleted file stays listed until the commit
                self.read(path, executable=entry.startswith("100755"))
        self.reached = follow_modules(self.sources)

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Mistake(f"git {arguments[0]} failed in {self.root}: {done.stderr.strip()}")
        return done.stdout

    def read(self, path: str, executable: bool) -> None:
        data = (self.root / path).read_bytes()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            self.binaries.append(path)
            return
        source = self.sources[path] = Source(path, text, executable, self.kind_of(path))
        if path.endswith(".rs"):
            read_rust(source)
        elif path.endswith((".py", ".pyi")) or text.startswith("#!/usr/bin/env python3"):
            read_python(source)
        elif path.endswith(".md"):
            read_markdown(source)

    def kind_of(self, path: str) -> str:
        """Whether the code of a file is of the product, a test, or a bench."""
        for kind, folders in self.config.get("kinds", {}).items():
            if "/tests/" not in path and path.startswith(tuple(folders)):
                return str(kind)
        found = re.search(r"(^|/)tests/|^crates/[^/]+/(examples|benches)/", path)
        return "product" if not found else "bench" if found[2] else "test"

    def of(self, *ends: str) -> list[Source]:
        return [one for path, one in self.sources.items() if path.endswith(ends)]

    @cached_property
    def code(self) -> list[Source]:
        """Files in Rust and Python, also scripts without an ending."""
        return [one for one in self.sources.values() if one.code]

    @cached_property
    def types(self) -> dict[str, list[tuple[str, int]]]:
        """The path and line of each definition of a type in the product, by name."""
        types = defaultdict(list)
        for source in self.of(".rs"):
            for found in TYPE.finditer(source.product):
                types[found[1]].append((source.path, source.line(found.start())))
        return types

    @cached_property
    def phrases(self) -> list[tuple[str, int, str, dict[str, Any]]]:
        """The path, line and text of each banned phrase, with its entry in the configuration."""
        entries = self.config.get("phrase", [])
        each = "|".join(f"({one['pattern'].replace(' ', chr(92) + 's+')})" for one in entries)
        try:
            pattern = re.compile(rf"\b(?:{each or '(?!)'})")
        except re.error as error:
            raise Mistake(
                f"{CONFIG} has a [[phrase]] that is no regular expression: {error}"
            ) from error
        phrases = []
        for source in self.sources.values():
            # The zero of a line without prose keeps a phrase from reaching into the next comment.
            prose = "\n".join((one and one.strip()) or "\0" for one in source.prose)
            prose = re.sub(r"`[^`\n]+`", "`_`", prose)  # names in prose are code
            line, at = 1, 0
            for found in pattern.finditer(prose):
                line, at = line + prose.count("\n", at, found.start()), found.start()
                entry = entries[(found.lastindex or 1) - 1]
                phrases.append((source.path, line, " ".join(found[0].split()), entry))
            for line, message in source.messages:
                for found in pattern.finditer(message):
                    entry = entries[(found.lastindex or 1) - 1]
                    phrases.append((source.path, line, " ".join(found[0].split()), entry))
        return phrases

    def config_line(self, section: str, key: str) -> int:
        """The line of a key in the configuration, or 1."""
        here = ""
        for number, line in enumerate(self.config_text.splitlines(), 1):
            here = line.strip("[] ") if line.startswith("[") else here
            if here == section and re.match(rf'"?{re.escape(key)}"?\s*=', line):
                return number
        return 1


def area_of(path: str) -> str:
    """The crate of a file, or its top folder; `bindings` for the Rust side of the Python package."""
    if path.startswith("python/src/"):
        return "bindings"
    parts = path.split("/")
    return "root" if len(parts) == 1 else parts[1] if parts[0] == "crates" else parts[0]
