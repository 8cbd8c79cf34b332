"""A job's address hierarchy as data and as a drawing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from honeycomb._address import format_bytes
from honeycomb._display import as_html
from honeycomb._info import (
    KIND_FILE,
    KIND_KV,
    KIND_QUEUE,
    PINNED_MS,
    PREFIX_STATES,
    PrefixInfo,
    StructureInfo,
)

#: Most lines that a notebook shows.
SHOWN_LINES: Final = 200

_KINDS = {KIND_FILE: "file", KIND_QUEUE: "queue", KIND_KV: "kv"}


@dataclass(frozen=True, slots=True)
class Structure:
    """One structure of a prefix. ``bytes_used`` is as last reported by its servers."""

    name: str
    kind: str
    blocks: int
    bytes_used: int
    sealed: bool

    @classmethod
    def _from(cls, info: StructureInfo) -> Structure:
        kind = _KINDS.get(info["kind"], f"custom {info['kind']:#04x}")
        return cls(info["name"], kind, info["blocks"], info["bytes_used"], info["sealed"])

    def __str__(self) -> str:
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        sealed = ", sealed" if self.sealed else ""
        return f":{self.name}  {self.kind}, {blocks}, {format_bytes(self.bytes_used)}{sealed}"


@dataclass(frozen=True, slots=True)
class Node:
    """One prefix. ``lease`` and ``remaining`` are seconds; ``remaining`` is infinite when pinned and
    negative when overdue. ``state`` is ``live``, ``expired``, ``data lost`` or ``removed``.
    ``parents`` are the named parents, followed by the prefixes whose data its task opened.
    ``readers_left`` is the number of its declared readers that have not committed; ``committed`` is
    whether its own task has committed."""

    prefix: int
    name: str
    parents: tuple[int, ...]
    lease: float
    remaining: float
    state: str
    structures: tuple[Structure, ...]
    readers_left: int
    committed: bool

    @property
    def pinned(self) -> bool:
        """Whether the prefix never expires."""
        return self.remaining == math.inf

    @classmethod
    def _from(cls, info: PrefixInfo) -> Node:
        pinned = info["pinned"] or info["remaining_ms"] == PINNED_MS
        return cls(
            prefix=info["prefix"],
            name=info["name"],
            parents=tuple(info["parents"]),
            lease=info["lease_ms"] / 1000,
            remaining=math.inf if pinned else info["remaining_ms"] / 1000,
            state=PREFIX_STATES[info["state"]],
            structures=tuple(Structure._from(one) for one in info["structures"]),
            readers_left=info["readers_left"],
            committed=info["committed"],
        )

    def describe(self) -> str:
        """Its lease as text, its readers, and whether its task has committed."""
        words = self._lease()
        if self.readers_left:
            words += f", freed by {self.readers_left} reader{'s'[: self.readers_left > 1]}"
        return words + (", committed" if self.committed else "")

    def _lease(self) -> str:
        if self.state != "live":
            return self.state
        if self.pinned:
            return "pinned"
        return f"lease {self.lease:g} s, {self.remaining:.1f} s left"


class Tree:
    """A snapshot of a job's hierarchy. ``str()`` draws it; iteration yields its nodes, parents before
    children. A prefix with several parents is drawn under the first."""

    def __init__(self, job: str, prefixes: list[PrefixInfo]) -> None:
        self.job = job
        self.nodes = [Node._from(info) for info in prefixes]
        self._by_id = {node.prefix: node for node in self.nodes}
        self._children: dict[int, list[Node]] = {}
        for node in self.nodes:
            if node.parents:
                self._children.setdefault(node.parents[0], []).append(node)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def blocks(self) -> int:
        """Blocks that the job holds."""
        return sum(one.blocks for node in self.nodes for one in node.structures)

    @property
    def bytes_used(self) -> int:
        """Bytes of data in the blocks, as last reported by the servers."""
        return sum(one.bytes_used for node in self.nodes for one in node.structures)

    def __str__(self) -> str:
        used = format_bytes(self.bytes_used)
        lines = [f"{self.job}  {len(self.nodes)} prefixes, {self.blocks} blocks, {used} used"]
        if self.nodes:
            lines[0] += f", {self.nodes[0].describe()}"
            lines += self._draw(self.nodes[0])
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = str(self).split("\n")
        if len(lines) > SHOWN_LINES:
            lines[SHOWN_LINES:] = [f"... {len(lines) - SHOWN_LINES} more lines; print() shows all"]
        return as_html(f"honeycomb.Tree of {self.job}", (), "\n".join(lines))

    def _draw(self, root: Node) -> Iterator[str]:
        """The lines of all nodes under the root. Uses an explicit stack, because a DAG may be deeper than
        Python's recursion limit."""
        yield from (f"   {one}" for one in root.structures)
        stack = [(child, "", last) for child, last in self._below(root)]
        while stack:
            node, indent, last = stack.pop()
            yield f"{indent}{'└─ ' if last else '├─ '}{node.name}  {node.describe()}{self._also(node)}"
            inner = indent + ("   " if last else "│  ")
            children = self._below(node)
            bar = "│  " if children else "   "
            yield from (f"{inner}{bar}{one}" for one in node.structures)
            stack += [(child, inner, is_last) for child, is_last in children]

    def _below(self, node: Node) -> list[tuple[Node, bool]]:
        """Children in reverse order (for a stack); the first one is marked, as it is drawn last."""
        children = self._children.get(node.prefix, [])
        return [(child, index == 0) for index, child in enumerate(reversed(children))]

    def _also(self, node: Node) -> str:
        others = [
            self._by_id[one].name or self.job for one in node.parents[1:] if one in self._by_id
        ]
        if not others:
            return ""
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        return f"  (also under {shown})"
