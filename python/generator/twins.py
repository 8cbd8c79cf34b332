"""The asynchronous twins of the blocking classes, from the modules of those classes.

A twin has the public members of its blocking class, with their parameters and docstrings. Each generated
call runs the blocking one in a thread (``honeycomb/aio/_run.py``). The base class of a twin is written by
hand, in ``honeycomb/aio``: its method ``_do_put`` replaces the generated body of ``put``, a public member
replaces the whole member, and its docstring begins that of the twin. A ``_do_`` method returns blocking
objects; the generated method makes twins of them.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias

AnyFunction: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

#: Modules of the blocking classes, with the name of the twin of each class.
TWINS: Final = {
    "notices": {"Listener": "AsyncListener"},
    "queue": {"Reservation": "AsyncReservation", "Queue": "AsyncQueue"},
    "file": {"HoneyFile": "AsyncFile"},
    "kv": {"Kv": "AsyncKv"},
    "custom": {"Custom": "AsyncCustom"},
    "bucket": {"Bucket": "AsyncBucket"},
    "job": {"Job": "AsyncJob"},
    "cluster": {"Client": "AsyncClient"},
}
#: Functions that open an object, by module.
FUNCTIONS: Final = {"cluster": ["connect"]}
#: Calls that wait for an event up to their ``timeout``.
WAITS: Final = {
    "Custom.call",
    "HoneyFile.wait_until",
    "Kv.wait_until",
    "Queue.wait_until_closed",
}
#: Results that the twin of a class keeps track of: its base class has a method ``_adopt`` for them.
ADOPTED: Final = {"Job": "Queue", "Client": "Job"}
#: Calls that neither wait nor send a request.
IMMEDIATE: Final = {"Job.on_lost_leases"}

TWIN_OF: Final = {name: twin for classes in TWINS.values() for name, twin in classes.items()}
MODULE_OF: Final = {
    twin: f"honeycomb.aio._twins.{module}"
    for module, classes in TWINS.items()
    for twin in classes.values()
}
#: Results that a caller opens with ``await`` or ``async with``, and the call that closes each.
OPENED: Final = {
    "Client": ("AsyncClient", "Client.close"),
    "Job": ("AsyncJob", "Job.close"),
    "Listener": ("AsyncListener", "Listener.close"),
    "io.BufferedReader": ("AsyncStream[bytes]", "io.IOBase.close"),
    "Appender": ("AsyncStream[bytes]", "io.IOBase.close"),
    "io.TextIOWrapper": ("AsyncStream[str]", "io.IOBase.close"),
    "io.IOBase": ("AsyncStream[Any]", "io.IOBase.close"),
}
BATCHES: Final = ("Batch", "AtomicBatch")
#: Modules of further names in the generated text.
HELPERS: Final = {
    "Any": "typing",
    "AsyncBatch": "honeycomb.aio._streams",
    "AsyncIterator": "collections.abc",
    "AsyncStream": "honeycomb.aio._streams",
    "Opening": "honeycomb.aio._run",
    "_check": "honeycomb",
    "cluster": "honeycomb",
    "gathered": "honeycomb.aio._twin",
    "opening": "honeycomb.aio._twin",
    "overload": "typing",
    "run": "honeycomb.aio._run",
    "stepping": "honeycomb.aio._streams",
    "wait": "honeycomb.aio._run",
}


class Source:
    """A module, its classes, and the modules of the names that it uses."""

    def __init__(self, path: Path, name: str) -> None:
        # Type variables of stubs are private there, and public in the modules of the classes.
        self.text = re.sub(r"\b_([A-Z])\b", r"\1", path.read_text())
        self.lines = self.text.splitlines()
        self.name = name
        self.tree = ast.parse(self.text)

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {one.name: one for one in self.tree.body if isinstance(one, ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, tuple[str, bool]]:
        """The statement that brings each name, and whether it is for type checkers only."""
        found: dict[str, tuple[str, bool]] = {}
        for one in self.tree.body:
            typing_only = isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"
            for statement in one.body if isinstance(one, ast.If) and typing_only else [one]:
                if isinstance(statement, ast.Import):
                    for alias in statement.names:
                        found[alias.name] = (f"import {alias.name}", typing_only)
                elif isinstance(statement, ast.ImportFrom):
                    for alias in statement.names:
                        text = f"from {statement.module} import {alias.name}"
                        found[alias.name] = (text, typing_only)
        return found

    @cached_property
    def defined(self) -> set[str]:
        """The names that the module defines."""
        found: set[str] = set()
        for one in self.tree.body:
            if isinstance(one, ast.ClassDef | ast.FunctionDef):
                found.add(one.name)
            elif isinstance(one, ast.Assign | ast.AnnAssign):
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
        return found

    def docstring(self, node: ast.ClassDef | AnyFunction) -> str:
        """The docstring as it is written, with its quotes; empty without one."""
        return self.literal(node.body[0])

    def literal(self, statement: ast.stmt) -> str:
        """A statement that is only a string, as it is written; empty for another one."""
        value = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            return ""
        return ast.get_source_segment(self.text, value) or ""

    def comment_above(self, node: ast.stmt) -> list[str]:
        """The lines of the comment ``#:`` before a statement."""
        begin = node.lineno - 1
        while self.lines[begin - 1].strip().startswith("#:"):
            begin -= 1
        return [line.strip() for line in self.lines[begin : node.lineno - 1]]


@dataclass(frozen=True)
class Call:
    """A function of the blocking interface: its forms for type checkers, and its own."""

    name: str
    forms: list[AnyFunction]
    own: AnyFunction
    doc: str
    decorators: list[str]

    @property
    def overloaded(self) -> bool:
        return bool(self.forms)

    def is_iterable(self, name: str) -> bool:
        """Whether a parameter may be an iterator."""
        return any(
            one.arg == name and one.annotation and "Iterable[" in ast.unparse(one.annotation)
            for form in (*self.forms, self.own)
            for one in parameters(form)
        )


def parameters(function: AnyFunction) -> list[ast.arg]:
    taken = function.args
    every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
    return [one for one in every if one.arg != "self"]


def returned(function: AnyFunction) -> str:
    if function.returns is None:
        raise SystemExit(f"{function.name} has no annotation of its result")
    return ast.unparse(function.returns)


def passed(function: AnyFunction) -> str:
    """The arguments of a call with the parameters of ``function``."""
    taken = function.args
    texts = [one.arg for one in (*taken.posonlyargs, *taken.args) if one.arg != "self"]
    texts += [f"*{taken.vararg.arg}"] if taken.vararg else []
    texts += [f"{one.arg}={one.arg}" for one in taken.kwonlyargs]
    return ", ".join(texts)


def merged(forms: list[AnyFunction]) -> AnyFunction:
    """One form for the forms of a stub: a type that differs between them is ``Any``."""
    first = forms[0]
    own = ast.parse(ast.unparse(first)).body[0]
    assert isinstance(own, ast.FunctionDef)
    own.decorator_list = []
    for at, one in enumerate(parameters(own)):
        kinds = {ast.unparse(parameters(form)[at].annotation or one) for form in forms}
        if len(kinds) > 1:
            one.annotation = ast.Name("Any")
    if len({returned(form) for form in forms}) > 1:
        own.returns = ast.Name("Any")
    return own


def calls_of(source: Source, body: Iterable[ast.stmt]) -> dict[str, Call]:
    """The functions of a class or a module by name, in their order."""
    groups: dict[str, list[AnyFunction]] = {}
    for one in body:
        if isinstance(one, ast.FunctionDef):
            groups.setdefault(one.name, []).append(one)
    calls = {}
    for name, group in groups.items():
        forms = [one for one in group if "overload" in map(ast.unparse, one.decorator_list)]
        last = group[-1]
        docs = [doc for doc in map(source.docstring, group) if doc]
        calls[name] = Call(
            name=name,
            forms=forms,
            own=merged(forms) if len(forms) == len(group) else last,
            doc=docs[0] if docs else "",
            decorators=[ast.unparse(one) for one in last.decorator_list],
        )
    return calls


class Module:
    """The text of one module of twins."""

    def __init__(self, root: Path, name: str) -> None:
        package = root / "python/honeycomb"
        self.name = name
        self.source = Source(package / f"{name}.py", f"honeycomb.{name}")
        self.stubs = Source(package / "_native.pyi", "honeycomb._native")
        self.base = Source(package / "aio" / f"_{name}.py", f"honeycomb.aio._{name}")
        #: The hand-written bodies that replace a call of the current class.
        self.replacing: set[str] = set()

    def text(self) -> str:
        body: list[str] = []
        for blocking, twin in TWINS[self.name].items():
            body += self.twin(self.source.classes[blocking], twin)
        functions = calls_of(self.source, self.source.tree.body)
        for name in FUNCTIONS.get(self.name, ()):
            body += self.function(functions[name])
        body += [""]
        text = "\n".join(body)
        doc = f'"""The twins of ``honeycomb.{self.name}``."""'
        return "\n".join([doc, "from __future__ import annotations", *self.imports(text), "", text])

    # --------------------------------------------------------------------------------- classes

    def twin(self, blocking: ast.ClassDef, twin: str) -> Iterator[str]:
        self.replacing = set()
        base = f"{twin.removeprefix('Async')}Base"
        if base not in self.base.classes:
            raise SystemExit(f"python/honeycomb/aio/_{self.name}.py has no class {base}")
        own = self.base.classes[base]
        yield f"class {twin}({base}):"
        begin, end = self.base.docstring(own)[3:-3], self.source.docstring(blocking)[3:-3]
        yield f'    """{begin.rstrip()}\n\n    {end.rstrip()}'
        yield '    """'
        if any(ast.unparse(one).startswith("__slots__") for one in own.body):
            yield "    __slots__ = ()"
        written = {one.name for one in own.body if isinstance(one, AnyFunction)}
        if "__init__" not in written:
            yield f"    def __init__(self, blocking: {blocking.name}) -> None:"
            yield "        super().__init__(blocking)"
        for base_class in blocking.bases:
            native = self.stubs.classes.get(ast.unparse(base_class))
            if native is not None and ast.unparse(base_class) != "Face":
                for call in calls_of(self.stubs, native.body).values():
                    yield from self.member(blocking.name, call, written)
        calls = calls_of(self.source, blocking.body)
        for number, one in enumerate(blocking.body):
            if isinstance(one, ast.FunctionDef) and one.name in calls:
                yield from self.member(blocking.name, calls.pop(one.name), written)
            elif isinstance(one, ast.AnnAssign) and one.value is None:
                yield from self.attribute(one, blocking.body[number + 1], written)
            elif isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) != "__hash__":
                yield from self.alias(one)
        for name in sorted(written):
            if name.startswith("_do_") and name not in self.replacing:
                raise SystemExit(f"{base}.{name} replaces no call of {blocking.name}")

    def attribute(self, one: ast.AnnAssign, then: ast.stmt, written: set[str]) -> Iterator[str]:
        """An attribute of a blocking object as a property."""
        name, doc = ast.unparse(one.target), self.source.literal(then)
        if name.startswith("_") or name in written:
            return
        yield "    @property"
        yield f"    def {name}(self) -> {ast.unparse(one.annotation)}:"
        yield f"        {doc}"
        yield f"        return self.blocking.{name}"

    def alias(self, one: ast.Assign) -> Iterator[str]:
        """Another name of a method."""
        name = ast.unparse(one.targets[0])
        if not name.startswith("_"):
            yield from (f"    {line}" for line in self.source.comment_above(one))
            yield f"    {ast.unparse(one)}"

    def member(self, owner: str, call: Call, written: set[str]) -> Iterator[str]:
        if call.name.startswith("_") or call.name in written:
            return
        if "property" in call.decorators:
            yield "    @property"
            yield f"    def {call.name}(self) -> {returned(call.own)}:"
            yield f"        {call.doc}"
            yield f"        return self.blocking.{call.name}"
            return
        replaced = f"_do_{call.name}" in written
        self.replacing.add(f"_do_{call.name}")
        adopted = ADOPTED.get(owner, "")
        text = returned(call.own)
        kind, result = self.twin_result(text)
        is_async = kind in ("plain", "twin", "twins", "union")
        if f"{owner}.{call.name}" in IMMEDIATE:
            is_async, kind = False, "immediate"
        define = "async def" if is_async else "def"
        for form in call.forms:
            result_of_form = self.twin_result(returned(form))[1]
            yield "    @overload"
            yield f"    {define} {call.name}({ast.unparse(form.args)}) -> {result_of_form}: ..."
        yield f"    {define} {call.name}({ast.unparse(call.own.args)}) -> {result}:"
        yield f"        {call.doc}"
        if replaced:
            bare = f"self._do_{call.name}({passed(call.own)})"
            yield from self.answered(kind, text, f"await {bare}" if is_async else bare, adopted)
            return
        for one in parameters(call.own):
            if call.is_iterable(one.arg):
                yield f"        {one.arg} = gathered({one.arg})"
        blocking = "self.blocking"
        if call.overloaded:
            # The form of a call is not known here, so that no form of the blocking call fits.
            blocking = "blocking"
            yield "        blocking: Any = self.blocking"
        if kind == "opening":
            close = OPENED[text][1]
            bare = "AsyncStream" if result.startswith("Opening[AsyncStream") else result[8:-1]
            made = f"lambda one: self._adopt({bare}(one))" if text == adopted else bare
            yield f"        return opening({self.ran(call, blocking)}, {made}, {close})"
        elif f"{owner}.{call.name}" in WAITS:
            arguments = re.sub(r"\btimeout$", "left", passed(call.own))
            waited = f"lambda left: {blocking}.{call.name}({arguments})"
            yield f"        return await wait({waited}, _check.timeout(timeout))"
        else:
            direct = f"{blocking}.{call.name}({passed(call.own)})"
            value = f"await run({self.ran(call, blocking)})" if is_async else direct
            value = f"stepping({direct})" if kind == "iterator" else value
            yield from self.answered(kind, text, value, adopted)

    def ran(self, call: Call, blocking: str) -> str:
        """A function without parameters that makes the blocking call."""
        arguments = passed(call.own)
        bare = f"{blocking}.{call.name}"
        return f"lambda: {bare}({arguments})" if arguments else bare

    def answered(self, kind: str, result: str, value: str, adopted: str) -> Iterator[str]:
        """The statements that return a value of the blocking interface."""

        def twin_of(name: str, one: str) -> str:
            twin = f"{TWIN_OF[name]}({one})"
            return f"self._adopt({twin})" if name == adopted else twin

        if result == "None":
            yield f"        {value}"
        elif kind == "twin":
            yield f"        return {twin_of(result, value)}"
        elif kind == "twins":
            yield f"        return [{twin_of(result[5:-1], 'one')} for one in {value}]"
        elif kind == "union":
            *first, last = result.split(" | ")
            yield f"        made = {value}"
            for name in first:
                yield f"        if isinstance(made, {name}):"
                yield f"            return {twin_of(name, 'made')}"
            yield f"        return {twin_of(last, 'made')}"
        elif kind == "batch":
            yield f"        return AsyncBatch({value})"
        else:
            yield f"        return {value}"

    def twin_result(self, result: str) -> tuple[str, str]:
        """The form of a result, and its type in the twin."""
        if result in OPENED:
            return "opening", f"Opening[{OPENED[result][0]}]"
        if result in TWIN_OF:
            return "twin", TWIN_OF[result]
        if result.removeprefix("list[").removesuffix("]") in TWIN_OF:
            return "twins", f"list[{TWIN_OF[result[5:-1]]}]"
        if all(name in TWIN_OF for name in result.split(" | ")):
            return "union", " | ".join(TWIN_OF[name] for name in result.split(" | "))
        if result.startswith("Iterator["):
            return "iterator", f"Async{result}"
        if result in BATCHES:
            return "batch", f"AsyncBatch[{result}]"
        if set(re.findall(r"\w+", result)) & {*TWIN_OF, *OPENED}:
            raise SystemExit(f"{self.source.name}: a twin cannot return {result}")
        return "plain", result

    def function(self, call: Call) -> Iterator[str]:
        """A function that opens an object."""
        text = returned(call.own)
        twin, close = OPENED[text]
        yield f"def {call.name}({ast.unparse(call.own.args)}) -> Opening[{twin}]:"
        yield f"    {call.doc}"
        yield f"    return opening({self.ran(call, self.name)}, {twin}, {close})"

    # --------------------------------------------------------------------------------- imports

    def imports(self, text: str) -> Iterator[str]:
        """The statements that bring the names of a text."""
        names = set(free_names(ast.parse(text)))
        checked: list[str] = []
        local = set(TWINS[self.name].values()) | set(FUNCTIONS.get(self.name, ()))
        for name in sorted(names - local - set(dir(builtins))):
            statement, typing_only = self.origin(name)
            if typing_only:
                checked.append(statement)
            else:
                yield statement
        if checked:
            yield "from typing import TYPE_CHECKING"
            yield "if TYPE_CHECKING:"
            yield from (f"    {statement}" for statement in checked)

    def origin(self, name: str) -> tuple[str, bool]:
        if name in HELPERS:
            return f"from {HELPERS[name]} import {name}", False
        if name in MODULE_OF:
            return f"from {MODULE_OF[name]} import {name}", False
        if name in self.base.classes:
            return f"from {self.base.name} import {name}", False
        if name in self.source.defined:
            return f"from {self.source.name} import {name}", False
        for source in (self.source, self.stubs):
            if name in source.imports:
                return source.imports[name]
        raise SystemExit(f"{self.source.name}: no module of {name} is known")


def free_names(tree: ast.AST, bound: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names that a piece of code takes from its module."""
    if isinstance(tree, ast.Name) and isinstance(tree.ctx, ast.Load) and tree.id not in bound:
        yield tree.id
    inner = bound
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        yield from free_names(tree.args, bound)
        taken = tree.args
        every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg]
        inner = bound | {one.arg for one in every if one is not None}
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        for one in (tree.returns, *tree.decorator_list):
            if one is not None:
                yield from free_names(one, bound)
        stored = [one for one in ast.walk(tree) if isinstance(one, ast.Name)]
        inner |= {one.id for one in stored if isinstance(one.ctx, ast.Store)}
        for statement in tree.body:
            yield from free_names(statement, inner)
        return
    if isinstance(tree, ast.Lambda):
        yield from free_names(tree.body, inner)
        return
    if isinstance(tree, ast.ClassDef):
        members = {one.name for one in tree.body if isinstance(one, AnyFunction)}
        for child in ast.iter_child_nodes(tree):
            visible = bound if isinstance(child, AnyFunction) else bound | members
            yield from free_names(child, visible)
        return
    if isinstance(tree, ast.ListComp):
        targets = [
            one.id for part in tree.generators for one in [part.target] if isinstance(one, ast.Name)
        ]
        inner = bound | set(targets)
    for child in ast.iter_child_nodes(tree):
        yield from free_names(child, inner)


def twins(root: Path) -> Iterator[tuple[str, str, str]]:
    """Each module of twins: its path, the path of its source, and its text."""
    for name in TWINS:
        path = f"python/honeycomb/aio/_twins/{name}.py"
        yield path, f"python/honeycomb/{name}.py", Module(root, name).text()
