"""The settings of a client: from the environment, otherwise from the configuration file.

``honeycomb config show --origin`` shows all of them; ``docs/operating.md`` lists them.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

from honeycomb import errors

# All settings that the file may contain, so that a mistyped name is an error. The program owns the list.
NAMES: Final = (
    "address",
    "token",
    "timeout",
    "job",
    "cluster_file",
    "python",
    "listen",
    "advertise",
    "insecure",
    "unix",
    "unix_dir",
    "controller",
    "memory",
    "disks",
    "disk_shape",
    "block_size",
    "shards",
    "controller_shards",
    "spin_us",
    "page_reserve",
    "page_reserve_idle",
    "lease_ms",
    "server_loss_ms",
    "high_mark",
    "low_mark",
    "policy",
    "scale_add_above",
    "scale_remove_below",
    "scale_min_servers",
    "scale_hook",
    "flush_root",
    "stop_wait",
    "data_dir",
    "prices",
)


def setting(name: str) -> str | None:
    """A setting that is text: ``HONEYCOMB_<NAME>``, else the file's, else ``None``. Empty variables
    count as not set.

    Raises :class:`InvalidArgument` for an invalid file, and :class:`PermissionDenied` for a file that
    contains a token and that other users can read.
    """
    if value := os.environ.get(f"HONEYCOMB_{name.upper()}"):
        return value
    path, table = _file()
    value = table.get(name)
    if value is not None and not isinstance(value, str):
        raise errors.InvalidArgument(f"{path}: {name} is text in quotes, not {value!r}")
    return value


def switch(name: str, default: bool) -> bool:
    """A setting that is true or false: ``HONEYCOMB_<NAME>``, else the file's, else the default.

    Raises :class:`InvalidArgument` for any other value, and the errors of :func:`setting` for a file.
    """
    if text := os.environ.get(f"HONEYCOMB_{name.upper()}"):
        if text not in ("true", "false"):
            raise errors.InvalidArgument(
                f"HONEYCOMB_{name.upper()}: {text!r} is neither true nor false"
            )
        return text == "true"
    path, table = _file()
    value = table.get(name, default)
    if not isinstance(value, bool):
        raise errors.InvalidArgument(f"{path}: {name} is true or false, not {value!r}")
    return value


def seconds(name: str, default: float) -> float:
    """A setting that is a positive number of seconds: ``HONEYCOMB_<NAME>``, else the file's, else the
    default. Raises :class:`InvalidArgument` for any other value, and the errors of :func:`setting` for a
    file."""
    source = f"HONEYCOMB_{name.upper()}"
    value: Any = os.environ.get(source)
    if not value:
        path, table = _file()
        source, value = f"{path}: {name}", table.get(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < 1e9:
        raise errors.InvalidArgument(f"{source}: {value!r} is not a positive number of seconds")
    return number


def config_file() -> tuple[Path, bool]:
    """The path of the configuration file, and whether ``HONEYCOMB_CONFIG`` names it; then it must exist."""
    if named := os.environ.get("HONEYCOMB_CONFIG"):
        return Path(named), True
    folder = os.environ.get("XDG_CONFIG_HOME")
    base = Path(folder) if folder else Path.home() / ".config"
    return base / "honeycomb" / "config.toml", False


def _file() -> tuple[Path, dict[str, Any]]:
    path, named = config_file()
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            table = tomllib.load(file)
    except OSError as error:
        if not named and isinstance(error, FileNotFoundError | NotADirectoryError):
            return path, {}
        raise errors.InvalidArgument(f"{path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise errors.InvalidArgument(f"{path} is not TOML: {error}") from error
    for key in table:
        if key not in NAMES:
            near = difflib.get_close_matches(key, NAMES, 1)
            hint = f"; {near[0]!r} was probably meant" if near else ""
            raise errors.InvalidArgument(f"{path}: there is no setting {key!r}{hint}")
    if "token" in table and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise errors.PermissionDenied(
            f"{path} contains a token and other users can read it (mode {stat.S_IMODE(mode):04o}); "
            f"run: chmod 600 {path}"
        )
    return path, table
