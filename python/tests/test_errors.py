from __future__ import annotations

import pickle
import tomllib

import pytest
from conftest import REPOSITORY

from honeycomb import errors

STATUSES = [
    status["name"]
    for status in tomllib.loads((REPOSITORY / "protocol" / "messages.toml").read_text())["status"]
    if status["name"] != "Ok"
]


@pytest.mark.parametrize("name", STATUSES)
def test_every_status_has_a_class_of_its_name(name: str) -> None:
    error = errors.from_status(name, "wc/map-3: what happened")
    assert type(error).__name__ == name
    assert error.status == name
    assert isinstance(error, errors.HoneycombError)
    assert str(error) == "wc/map-3: what happened"
    assert type(error).__doc__
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_no_class_without_a_status() -> None:
    assert errors.UnknownStatus.known == frozenset(STATUSES)


def test_a_status_of_a_newer_peer_is_told_whole() -> None:
    error = errors.from_status("TooPurple", "why")
    assert isinstance(error, errors.UnknownStatus)
    assert str(error) == "TooPurple: why"


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("KeyNotFound", KeyError),
        ("PermissionDenied", PermissionError),
        ("GrantRevoked", PermissionError),
        ("DeadlineExceeded", TimeoutError),
        ("Unavailable", ConnectionError),
        ("ValueTooLarge", ValueError),
        ("InvalidArgument", ValueError),
        ("OutOfMemory", MemoryError),
        ("Removed", errors.NotFound),
    ],
)
def test_python_s_own_exceptions_match(name: str, builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise errors.from_status(name, "message")
