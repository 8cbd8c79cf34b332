"""A real S3 server for tests: versitygw, which ``verify/versitygw/build.sh`` builds."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

from conftest import REPOSITORY

BUCKET = "lake"


def program() -> Path | None:
    """The gateway program, if it is built."""
    built = sorted(REPOSITORY.glob(".peers/versitygw-*[0-9]"))
    assert built or os.environ.get("NEEDS_S3") != "1", "versitygw is not there: make peers"
    return built[-1] if built else None


class Gateway:
    """A gateway on a free port over ``folder``; objects are files in ``bucket``."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.bucket = folder / "data" / BUCKET
        self.bucket.mkdir(parents=True)
        (folder / "sidecar").mkdir()
        for _ in range(5):  # Another process may have taken the free port in the meantime.
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.address = f"127.0.0.1:{free.getsockname()[1]}"
            if self._started(program, folder):
                return
        raise AssertionError("versitygw did not start")

    def _started(self, program: Path, folder: Path) -> bool:
        health = f"/health-{secrets.token_hex(8)}"
        command = [program, "--port", self.address, "--quiet", "--health", health]
        command += ["--access", "honeycomb", "--secret", "in a test"]
        command += ["posix", "--sidecar", folder / "sidecar", folder / "data"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        pause = threading.Event()
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{self.address}{health}", timeout=1):
                    return True
            except (urllib.error.URLError, OSError):
                pause.wait(0.01)
        return False

    def variables(self) -> dict[str, str]:
        """The environment with which clients reach the gateway."""
        return {
            "AWS_ENDPOINT": f"http://{self.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "honeycomb",
            "AWS_SECRET_ACCESS_KEY": "in a test",
        }

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
