"""Structures of custom kinds, which memory servers add (paper, 4.1): one handle for all kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from honeycomb import _check, errors
from honeycomb._address import Address
from honeycomb._display import Facts, Remote
from honeycomb._native import NativeCustom
from honeycomb._session import Face, wrong_kind

if TYPE_CHECKING:
    from honeycomb._native import CustomKind
    from honeycomb.job import Job

__all__ = ["Custom", "Kind", "Operation", "Reply"]

#: Codes of custom kinds.
CODE_MIN: Final = 0x80
CODE_MAX: Final = 0xEF
_ROUTES: Final = ("", "head", "tail", "position", "key", "each", "through")
_ROUTERS: Final = ("", "offset", "ends", "hash range", "index")
_VERBS: Final = ("", "r", "w", "rw")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a custom kind.

    ``verbs`` are the rights that a grant must include (``"r"``, ``"w"`` or ``"rw"``). ``route`` is the
    block or blocks that the operation is sent to: ``"head"``, ``"tail"``, ``"position"`` (it requires
    ``position=``), ``"key"`` (it requires ``key=``), or ``"each"`` and ``"through"``
    (:meth:`Custom.call_each`). An operation that ``mutates`` takes effect once, however often it is sent.
    """

    name: str
    number: int
    verbs: str
    route: str
    mutates: bool
    payload: bool
    waits: bool
    positional: bool


@dataclass(frozen=True, slots=True)
class Kind:
    """A custom kind of structure, as described by the servers that serve it. ``servers`` is the number of
    live servers that serve it, as :meth:`Client.kinds` returns it; otherwise 0."""

    code: int
    name: str
    router: str
    operations: dict[str, Operation]
    servers: int = 0


class Reply(NamedTuple):
    """The result of an operation: a number, arguments and a payload, whose meanings the kind defines.
    ``start`` is the position at which the replying block begins; positions inside of ``args`` or
    ``payload`` that are relative to the block count from there. A ``value`` that is a position already
    counts from the beginning of the structure."""

    value: int
    args: bytes
    payload: bytes
    start: int


class Custom(Face, Remote):
    """A structure of a custom kind, opened by :meth:`Job.custom`, :meth:`Job.create_custom` or
    :meth:`Job.open_custom`.

    *Consistency*: each operation is atomic at its block; the kind defines further guarantees. Mutating
    operations take effect once, even if the client has to repeat them. *Durability*: class ``memory``;
    the data is lost with its server (:class:`~honeycomb.errors.DataLost`) or its lease
    (:class:`~honeycomb.errors.LeaseExpired`). *Concurrency*: any number of threads, processes and tasks.
    """

    def __init__(self, job: Job, address: Address, native: NativeCustom | None = None) -> None:
        self._job = job
        self._address = address
        self._begin(native)

    def _open(self) -> NativeCustom:
        opened = self._job._open_native(self._address, self._identity)
        if not isinstance(opened, NativeCustom):
            raise wrong_kind(self.address, "of a custom kind", opened)
        return opened

    @property
    def address(self) -> str:
        """Its address with the job's name: ``job/T4/T6:name``."""
        return f"{self._job.name}/{self._address}"

    @property
    def kind(self) -> Kind:
        """Its kind, with name and operations."""
        return kind_of(self._native().kind)

    def call(
        self,
        operation: str,
        payload: _check.BytesLike = b"",
        *,
        args: _check.BytesLike = b"",
        position: int | None = None,
        key: _check.BytesLike | None = None,
        timeout: float | None = 0,
    ) -> Reply:
        """Runs an operation, given by its name, and returns its result.

        ``payload`` and ``args`` are bytes-like, in the form that the operation defines. ``position`` or
        ``key`` selects the block, if the operation's route requires one. An operation that can wait does so
        for up to ``timeout`` seconds (``None`` without limit) and then raises
        :class:`~honeycomb.errors.NotYet`. Ctrl-C ends the wait.

        Raises :class:`~honeycomb.errors.Refused`, with the structure's ``code``, if the structure refuses
        the operation for a reason that its kind defines; :class:`~honeycomb.errors.UnknownOpcode` if the
        kind has no such operation; and :class:`~honeycomb.errors.InvalidArgument` if the arguments do not
        match the operation.
        """
        return Reply(
            *self._native().call(
                _check.text("operation", operation, "append"),
                _check.data("the payload", payload),
                _check.data("args", args),
                None if position is None else _check.whole("position", position, 0, _check.U64_MAX),
                None if key is None else _check.data("keys", key),
                _check.timeout(timeout),
            )
        )

    def call_each(
        self,
        operation: str,
        payload: _check.BytesLike = b"",
        *,
        args: _check.BytesLike = b"",
        position: int | None = None,
    ) -> list[Reply]:
        """Runs an operation on every block of the structure, or on every block up to that of ``position``,
        one after another from the first. Returns the result of each block.

        The call is not atomic: if the operation fails at a block, the call raises that error, and the
        operation has taken effect on the blocks before. Raises the errors of :meth:`call`.
        """
        replies = self._native().call_each(
            _check.text("operation", operation, "trim"),
            _check.data("the payload", payload),
            _check.data("args", args),
            None if position is None else _check.whole("position", position, 0, _check.U64_MAX),
        )
        return [Reply(*reply) for reply in replies]

    def __reduce__(self) -> tuple[Any, ...]:
        from honeycomb.job import _restore

        return _restore, (Custom, self._job._pickle_handle(), self._address, self._identity)

    def _facts(self) -> Facts:
        kind = self.kind
        yield "kind", f"{kind.name} ({kind.code:#04x}), routed by {kind.router}"
        yield "operations", ", ".join(kind.operations)

    def __repr__(self) -> str:
        return f"<honeycomb.Custom {self.address}>"


def kind_of(raw: CustomKind, servers: int = 0) -> Kind:
    """A kind from the native module's tuple."""
    code, name, router, operations = raw
    known = [
        Operation(name, number, _VERBS[verbs], _ROUTES[route], *rest)
        for name, number, verbs, route, *rest in operations
    ]
    return Kind(code, name, _ROUTERS[router], {one.name: one for one in known}, servers)


def kind_ref(kind: int | str) -> tuple[int | None, str | None]:
    """A kind's code or name, in the form that the native module takes."""
    if isinstance(kind, str):
        return None, _check.text("kind", kind, "log")
    try:
        return _check.whole("kind", kind, CODE_MIN, CODE_MAX), None
    except errors.InvalidArgument:
        raise errors.InvalidArgument(
            f"kind is the name of a custom kind or its code, {CODE_MIN:#x} to {CODE_MAX:#x}, "
            f"not {kind}"
        ) from None
