"""Structures of kinds that memory servers bring with them (paper, 4.1): one handle for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from honeycomb import _check, errors
from honeycomb._address import Address
from honeycomb._display import Facts, Remote
from honeycomb._native import NativeCustom
from honeycomb._session import Face, wrong_kind

if TYPE_CHECKING:
    from honeycomb.job import Job

__all__ = ["Custom", "Kind", "Operation", "Reply"]

#: Codes of custom kinds.
CODE_MIN: Final = 0x80
CODE_MAX: Final = 0xEF
_ROUTES: Final = ("", "head", "tail", "position", "key", "each", "through")
_ROUTERS: Final = ("", "offset", "ends", "hash range", "index")
_VERBS: Final = ("", "r", "w", "rw")

_RawOperation = tuple[str, int, int, int, bool, bool, bool, bool]
_RawKind = tuple[int, str, int, list[_RawOperation]]
_RawReply = tuple[int, bytes, bytes, int]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a custom kind.

    ``verbs`` is what a grant must allow (``"r"``, ``"w"`` or ``"rw"``), ``route`` to which block or
    blocks it goes: ``"head"``, ``"tail"``, ``"position"`` (it wants ``position=``), ``"key"`` (it wants
    ``key=``), or ``"each"`` and ``"through"`` (:meth:`Custom.call_each`). One that ``mutates`` takes
    effect once, however often it has to be sent.
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
    """A custom kind of structure, as the servers that serve it describe it. ``servers`` is how many do
    at present; 0 when it was not asked for."""

    code: int
    name: str
    router: str
    operations: dict[str, Operation]
    servers: int = 0


class Reply(NamedTuple):
    """What an operation answered: its number, its arguments and its payload. What these mean is for
    the kind to say. ``start`` is where the block that answered begins, for numbers inside of ``args``
    or ``payload`` that count from there; ``value`` counts from the beginning of the structure already
    where it is a position."""

    value: int
    args: bytes
    payload: bytes
    start: int


class Custom(Face, Remote):
    """A structure of a custom kind, opened by :meth:`Job.custom`, :meth:`Job.create_custom` or
    :meth:`Job.open_custom`.

    *Consistency*: each operation is atomic at its block; what else holds is for the kind to say.
    Operations that change something take effect once, also when the client had to repeat them.
    *Durability*: class ``memory``; lost with its server (:class:`~honeycomb.errors.DataLost`) or its
    lease (:class:`~honeycomb.errors.LeaseExpired`). *Concurrency*: any number of threads, processes and
    tasks.
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
        """Where it is: ``job/T4/T6:name``."""
        return f"{self._job.name}/{self._address}"

    @property
    def kind(self) -> Kind:
        """What its kind is called, and what its operations are."""
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
        """Asks for an operation, by its name, and returns what the structure answered.

        ``payload`` and ``args`` are bytes-like, as the operation wants them; ``position`` or ``key`` say
        which block it goes to, where its kind wants that. An operation that may wait does so for up to
        ``timeout`` seconds, ``None`` for as long as it takes, and then raises
        :class:`~honeycomb.errors.NotYet`; Ctrl-C ends the wait.

        Raises :class:`~honeycomb.errors.Refused`, with the structure's ``code``, when the structure
        refuses it for a reason of its own, :class:`~honeycomb.errors.UnknownOpcode` for an operation
        that it has not, and :class:`~honeycomb.errors.InvalidArgument` for one that is not asked as
        its kind wants.
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
        """Asks every block of the structure, or every one up to that of ``position``, for an operation,
        one after the other from the first; returns what each answered.

        It is not atomic: what fails at one block is raised, and those before have done it. Raises as
        :meth:`call`.
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


def kind_of(raw: _RawKind, servers: int = 0) -> Kind:
    """What the native half tells of a kind."""
    code, name, router, operations = raw
    known = [
        Operation(name, number, _VERBS[verbs], _ROUTES[route], *rest)
        for name, number, verbs, route, *rest in operations
    ]
    return Kind(code, name, _ROUTERS[router], {one.name: one for one in known}, servers)


def kind_ref(kind: int | str) -> tuple[int | None, str | None]:
    """A kind as the native half wants it named."""
    if isinstance(kind, str):
        return None, _check.text("kind", kind, "log")
    try:
        return _check.whole("kind", kind, CODE_MIN, CODE_MAX), None
    except errors.InvalidArgument:
        raise errors.InvalidArgument(
            f"kind is the name of a custom kind or its code, {CODE_MIN:#x} to {CODE_MAX:#x}, "
            f"not {kind}"
        ) from None
