"""The type stubs of the native module, from the Rust sources of the bindings.

Names, parameters, defaults and docstrings are those of ``#[pyclass]``, ``#[pymethods]`` and
``#[pyfunction]`` in ``python/src``. Most types follow from the Rust types. The tables below have the types
of the objects that Rust takes or returns as ``PyAny``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SCALARS: Final = {
    "()": "None",
    "str": "str",
    "String": "str",
    "[u8]": "bytes",
    "Vec<u8>": "bytes",
    "bool": "bool",
    "f64": "float",
    "PyAny": "Any",
    "PyBytes": "bytes",
    "PyDict": "dict[str, Any]",
    "PyErr": "BaseException",
    "Data": "Readable",
    "Target": "Writable",
    "OfPrefix": "PrefixOptions",
    "OfJob": "JobOptions",
    **dict.fromkeys(("u8", "u16", "u32", "u64", "usize", "i32", "i64"), "int"),
}
#: Types around another type that Python does not see.
WRAPPERS: Final = ("PyResult", "PyClassInitializer", "Bound", "Py", "PyRef")

#: Types of parameters that Rust takes as any object, by name.
PARAMETERS: Final = {
    "key": "Key",
    "keys": "Iterable[Key]",
    "entries": "Mapping[Any, Value] | Iterable[tuple[Key, Value]]",
    "value": "Value",
    "first": "Readable",
    "second": "Readable",
    "data": "Data",
    "item": "Item",
    "offset": "int",
    "size": "int",
    "timeout": "float",
    "buffer": "bytearray | memoryview",
}
#: Types that the Rust types do not show, by class, method and parameter; without a parameter, the result.
TYPES: Final = {
    "Face._native": "Any",
    "FileCalls.readinto.buffer": "Buffer",
    "KvCalls.__contains__.key": "object",
    "KvCalls.multi_get": "list[bytes | None]",
    "NativeClient.lease_info": "LeaseInfo",
    "NativeClient.list_jobs": "list[JobInfo]",
    "NativeClient.on_lost_leases.told": "Callable[[str, str, str], bool]",
    "NativeClient.status": "Status",
    "NativeClient.stop_cluster.look": "Callable[[int, int, int, int, list[str]], None] | None",
    "NativeClient.tree": "list[PrefixInfo]",
    "NativeDriver.take": "list[tuple[int, Answered | HoneycombError]]",
    "NativeKv.accumulate": "int | float | list[tuple[float, bytes]]",
    "NativeKv.atomic": "list[Answered] | tuple[int, HoneycombError, bool, bytes | None]",
    "NativeKv.batch": "list[Answered | HoneycombError]",
    "NativeKv.number": "int | float | None",
    "NativeKv.top": "list[tuple[float, bytes]] | None",
}
#: Methods whose result depends on their arguments: parameters and result of each form.
OVERLOADS: Final = {
    "KvCalls.get": [
        ("self, key: Key, default: None = None", "bytes | None"),
        ("self, key: Key, default: bytes", "bytes"),
        ("self, key: Key, default: _D", "bytes | _D"),
    ]
}
#: Methods that a class inherits, with the types of its own.
NARROWED: Final = {
    "KvCalls": "def _native(self) -> NativeKv: ...",
    "FileCalls": "def _native(self) -> NativeFile: ...",
    "QueueCalls": "def _native(self) -> NativeQueue: ...",
}
HEAD: Final = """
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, overload

from honeycomb._batch import Key, Value
from honeycomb._info import JobInfo, LeaseInfo, PrefixInfo, Status
from honeycomb._options import JobOptions, PrefixOptions
from honeycomb.errors import HoneycombError
from honeycomb.file import Buffer, Data
from honeycomb.queue import Item

_D = TypeVar("_D")

Readable: TypeAlias = bytes | bytearray | memoryview
Writable: TypeAlias = bytearray | memoryview
#: The result of one operation: a value, whether an entry existed, a comparison, or a number.
Answered: TypeAlias = bytes | bool | tuple[bool, bytes | None] | int | float | None
"""


@dataclass(frozen=True)
class Function:
    """A Rust function that Python calls."""

    name: str
    doc: str
    attributes: str
    parameters: list[tuple[str, str]]
    result: str
    #: Whether it is the method of an object.
    bound: bool


@dataclass
class Class:
    """A Rust struct that is a Python class."""

    name: str
    doc: str
    base: str
    methods: list[Function] = field(default_factory=list)


def closing(text: str, start: int) -> int:
    """The position of the bracket that closes the one at ``start``."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in "([{<":
            depth += 1
        elif text[at] in ")]}" or (text[at] == ">" and text[at - 1] not in "-="):
            depth -= 1
            if depth == 0:
                return at
    raise SystemExit(f"python/src: no bracket closes {text[start : start + 40]!r}")


def parts_of(text: str) -> list[str]:
    """The parts between the commas that are in no bracket."""
    parts, depth, begin = [], 0, 0
    for at, one in enumerate(text):
        if one in "([<":
            depth += 1
        elif one in ")]>" and text[at - 1 : at + 1] != "->":
            depth -= 1
        elif one == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [part.strip() for part in (*parts, text[begin:]) if part.strip()]


def docs_of(head: str) -> str:
    """The documentation comment in the lines before an item, up to its first section for Rust."""
    lines = [line.strip()[3:].removeprefix(" ") for line in head.splitlines() if "///" in line]
    return "\n".join(lines).split("\n# ")[0].strip()


ITEM: Final = (
    r"(?P<head>(?:^{indent}(?:///.*|#\[(?:.|\n)*?\])\n)*)"
    r"^{indent}(?:pub(?:\(crate\))? )?(?:unsafe )?fn (?P<name>\w+)"
)


def functions_in(text: str, indent: str) -> Iterator[Function]:
    """The functions of a block, in their order."""
    for found in re.finditer(ITEM.replace("{indent}", indent), text, re.MULTILINE):
        begin = text.index("(", found.end())
        end = closing(text, begin)
        result = re.match(r"\s*->\s*((?:.|\n)*?)\s*\{\n", text[end + 1 :])
        taken = [part.split(":", 1) for part in parts_of(text[begin + 1 : end])]
        bound = any("self" in one[0] or one[0].strip() == "slf" for one in taken)
        named = [(one[0].removeprefix("mut ").strip(), one[1].strip()) for one in taken if one[1:]]
        head = found["head"]
        yield Function(
            name=found["name"],
            doc=docs_of(head),
            attributes=re.sub(r"^\s*///.*\n", "", head, flags=re.MULTILINE),
            parameters=[one for one in named if one[0] not in ("py", "slf")],
            result=result[1] if result else "()",
            bound=bound,
        )


class Bindings:
    """Classes, functions and aliases of types of the Rust sources."""

    def __init__(self, sources: Path) -> None:
        self.lib = (sources / "lib.rs").read_text()
        self.classes: dict[str, Class] = {}
        self.functions: dict[str, Function] = {}
        self.aliases: dict[str, tuple[str, str]] = {}
        self.used: list[str] = []
        for path in sorted(sources.glob("*.rs")):
            self._read(path.read_text())
        for path in sorted(sources.glob("*.rs")):
            self._read_methods(path.read_text())

    def _read(self, text: str) -> None:
        pattern = (
            r"(?P<doc>(?:^///.*\n)*)^#\[pyclass\((?P<options>.*)\)\]\npub struct (?P<name>\w+)"
        )
        for found in re.finditer(pattern, text, re.MULTILINE):
            base = re.search(r"extends = (\w+)", found["options"])
            one = Class(found["name"], docs_of(found["doc"]), base[1] if base else "")
            self.classes[one.name] = one
        pattern = r"(?P<doc>(?:^///.*\n)*)^(?:pub )?type (?P<name>\w+)(?:<.*?>)? = (?P<type>[^;]*);"
        for found in re.finditer(pattern, text, re.MULTILINE):
            self.aliases[found["name"]] = (found["type"], docs_of(found["doc"]))
        pattern = (
            r"(?P<doc>(?:^///.*\n)*)^#\[derive\(FromPyObject.*\)\]\n"
            r"pub enum (?P<name>\w+) \{(?P<body>(?:.|\n)*?)\n\}"
        )
        for found in re.finditer(pattern, text, re.MULTILINE):
            variants = re.findall(r"^    \w+\((.*)\),$", found["body"], re.MULTILINE)
            self.aliases[found["name"]] = (" | ".join(variants), docs_of(found["doc"]))
        for function in functions_in(text, ""):
            if "#[pyfunction]" in function.attributes:
                self.functions[function.name] = function

    def _read_methods(self, text: str) -> None:
        for found in re.finditer(r"^#\[pymethods\]\nimpl (\w+) \{\n", text, re.MULTILINE):
            end = text.index("\n}", found.end())
            self.classes[found[1]].methods += functions_in(text[found.end() : end + 1], "    ")

    def python(self, rust: str, of: str, name: str = "", taken: bool = False) -> str:
        """The Python type of a Rust type, of a parameter or of the result of ``of``."""
        given = TYPES.get(f"{of}.{name}" if name else of)
        if given is not None:
            return given
        rust = re.sub(r"'\w+,?\s*|'_,?\s*|&|\bmut\b|<>|\w+::", "", rust).replace("<>", "").strip()
        if rust in SCALARS:
            any_object = PARAMETERS.get(name) if rust == "PyAny" else None
            return any_object or SCALARS[rust]
        if " | " in rust:
            return " | ".join(self.python(one, of, name, taken) for one in rust.split(" | "))
        if rust.startswith("("):
            inner = [self.python(one, of, name, taken) for one in parts_of(rust[1:-1])]
            return f"tuple[{', '.join(inner)}]"
        generic = re.fullmatch(r"(\w+)<((?:.|\n)*)>", rust)
        if generic is None:
            return self._named(rust, of)
        inside = self.python(generic[2], of, name, taken)
        if generic[1] in WRAPPERS:
            return inside
        if generic[1] == "Option":
            return f"{inside} | None"
        if generic[1] == "Vec":
            return f"Sequence[{inside}]" if taken else f"list[{inside}]"
        raise SystemExit(f"python/src: {of} has the type {rust}, which has no Python type here")

    def _named(self, rust: str, of: str) -> str:
        if rust == "Self":
            return of.split(".")[0]
        if rust in self.aliases:
            if rust not in self.used:
                self.used.append(rust)
            return rust
        if rust in self.classes:
            return rust
        raise SystemExit(f"python/src: {of} has the type {rust}, which has no Python type here")

    def aliased(self) -> Iterator[str]:
        """The aliases that the stubs use, with their comments."""
        for rust in self.used:  # grows while aliases name further ones
            text, doc = self.aliases[rust]
            yield from (f"#: {line}" for line in doc.splitlines())
            yield f"{rust}: TypeAlias = {self.python(text, rust, taken=rust == 'PlanNode')}"


def defaults_of(one: Function) -> dict[str, str | None]:
    """The parameters of a signature attribute in order, each with its default; none without an attribute."""
    found = re.search(r"signature = \(", one.attributes)
    if found is None:
        return {name: None for name, _ in one.parameters}
    begin = found.end() - 1
    inside = one.attributes[begin + 1 : closing(one.attributes, begin)]
    pairs = (part.partition("=") for part in parts_of(inside))
    defaults = {name.strip(): value.strip() or None for name, _, value in pairs}
    shown = re.search(r'text_signature = "((?:.|\n)*?)"', one.attributes)
    for name, value in re.findall(r"(\w+)=([^,)\s]+)", shown[1] if shown else ""):
        defaults[name] = value
    return {
        name: value and value.replace("true", "True").replace("false", "False")
        for name, value in defaults.items()
    }


def signature(bindings: Bindings, of: str, one: Function) -> str:
    """Parameters, with ``self`` for a method."""
    types = dict(one.parameters)
    texts = ["self"] if one.bound or "#[new]" in one.attributes else []
    for name, default in defaults_of(one).items():
        if name.startswith("*"):
            texts.append(f"{name.replace('_', '')}: Any")
            continue
        kind = bindings.python(types[name], of, name, taken=True)
        if default is None:
            texts.append(f"{name}: {kind}")
        else:
            kind = kind if default == "None" else kind.removesuffix(" | None")
            texts.append(f"{name}: {kind} = {default}")
    return ", ".join(texts)


def documented(head: str, doc: str, indent: str) -> Iterator[str]:
    """A definition without a body, with its docstring if it has one."""
    if not doc:
        yield f"{indent}{head} ..."
        return
    yield f"{indent}{head}"
    first, *rest = doc.splitlines()
    inner = indent + "    "
    lines = [f'{inner}"""{first}', *(f"{inner}{line}".rstrip() for line in rest)]
    if rest:
        lines.append(inner)
    lines[-1] += '"""'
    yield from lines


def defined(bindings: Bindings, one: Function, owner: str = "") -> Iterator[str]:
    """The stub of a function or method."""
    of, indent = (f"{owner}.{one.name}", "    ") if owner else (one.name, "")
    if one.name == "__getbuffer__":
        yield f"{indent}def __buffer__(self, flags: int, /) -> memoryview: ..."
        return
    for number, (parameters, result) in enumerate(OVERLOADS.get(of, ())):
        yield f"{indent}@overload"
        doc = one.doc if number == 0 else ""
        yield from documented(f"def {one.name}({parameters}) -> {result}:", doc, indent)
    if of in OVERLOADS:
        return
    parameters = signature(bindings, of, one)
    if "#[new]" in one.attributes:
        yield from documented(f"def __init__({parameters}) -> None:", one.doc, indent)
        return
    if "#[getter]" in one.attributes:
        yield f"{indent}@property"
    result = bindings.python(one.result, of)
    yield from documented(f"def {one.name}({parameters}) -> {result}:", one.doc, indent)


def stubs(root: Path) -> str:
    """The text of ``_native.pyi``."""
    bindings = Bindings(root / "python/src")
    body: list[str] = []
    for name in re.findall(r"add_class::<(?:\w+::)?(\w+)>", bindings.lib):
        one = bindings.classes[name]
        body += documented(f"class {name}{f'({one.base})' if one.base else ''}:", one.doc, "")
        if name in NARROWED:
            body.append(f"    {NARROWED[name]}")
        for method in one.methods:
            body += defined(bindings, method, name)
        body.append("")
    for name in re.findall(r"wrap_pyfunction!\((?:\w+::)?(\w+),", bindings.lib):
        body += defined(bindings, bindings.functions[name])
    intro = [line[3:].removeprefix(" ") for line in re.findall(r"(?m)^//!.*", bindings.lib)]
    doc = "\n".join(intro).strip()
    return "\n".join([f'"""{doc}\n"""', HEAD, *bindings.aliased(), "", *body])
