"""Settings that Python shares with the program: the environment and the configuration file."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest

import honeycomb
from honeycomb import errors
from honeycomb._local import cluster_file, running_cluster
from honeycomb._settings import NAMES, config_file, setting

BINARY = Path(sysconfig.get_path("scripts"), "honeycomb")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the configuration file, in an environment without other settings."""
    for name in ("ADDRESS", "TOKEN", "CLUSTER_FILE", "CONFIG"):
        monkeypatch.delenv(f"HONEYCOMB_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "honeycomb" / "config.toml"
    path.parent.mkdir()
    return path


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def test_the_program_has_the_same_settings() -> None:
    shown = subprocess.run(
        [BINARY, "config", "show", "--json"], capture_output=True, check=True, timeout=30
    )
    told = json.loads(shown.stdout)["settings"]
    assert tuple(one["name"] for one in told) == NAMES


def test_the_file_names_a_cluster(cluster: honeycomb.Client, config: Path) -> None:
    write(config, f'address = "{cluster.address}"\ntoken = "{cluster.token.hex()}"\n')
    with honeycomb.connect() as client:
        assert (client.address, client.embedded) == (cluster.address, False)
    shown = subprocess.run(
        [BINARY, "status", "--json"], capture_output=True, check=True, timeout=30
    )
    assert json.loads(shown.stdout)["blocks"] == cluster.status()["blocks"]


def test_the_environment_counts_before_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(config, 'address = "file:1"\ncluster_file = "/file"\nblock_size = 65536\n')
    assert setting("address") == "file:1"
    assert cluster_file() == Path("/file")
    monkeypatch.setenv("HONEYCOMB_ADDRESS", "environment:1")
    assert setting("address") == "environment:1"
    monkeypatch.setenv("HONEYCOMB_ADDRESS", "")
    assert setting("address") == "file:1"
    other = tmp_path / "other.toml"
    write(other, 'address = "other:1"\n')
    monkeypatch.setenv("HONEYCOMB_CONFIG", str(other))
    assert config_file() == (other, True)
    assert setting("address") == "other:1"
    assert setting("token") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('adress = "a:1"', "'address' was probably meant"),
        ("colour = 1", "there is no setting 'colour'"),
        ("address = 1", "is text in quotes, not 1"),
        ("address 1", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_told(config: Path, text: str, told: str) -> None:
    write(config, text)
    with pytest.raises(errors.InvalidArgument, match=told):
        honeycomb.connect()


def test_a_file_that_was_named_has_to_be_there(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setting("address") is None
    monkeypatch.setenv("HONEYCOMB_CONFIG", str(config))
    with pytest.raises(errors.InvalidArgument, match="cannot be read"):
        setting("address")


def test_a_token_that_others_can_read_is_refused(config: Path) -> None:
    write(config, 'token = "00"', 0o644)
    with pytest.raises(errors.PermissionDenied, match="chmod 600"):
        honeycomb.connect()


def test_localhost_is_the_local_cluster(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    command = [BINARY, "start", "--background", "--json", "--cluster-file", file]
    ran = subprocess.run(
        [*command, "--listen", "127.0.0.1:0", "--memory", "64MiB"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    write(config, f'cluster_file = "{file}"')
    try:
        address = json.loads(ran.stdout)["address"].replace("127.0.0.1", "localhost")
        with honeycomb.connect(address) as client:
            assert client.status()["blocks"] > 0
        assert running_cluster() is not None
    finally:
        subprocess.run([BINARY, "stop"], check=True, capture_output=True, timeout=30)
