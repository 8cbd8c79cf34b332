"""Pictures that are drawn from a description are as their description says."""

from __future__ import annotations

import subprocess
import sys

from conftest import REPOSITORY


def test_the_picture_of_the_architecture_is_current() -> None:
    script = REPOSITORY / "scripts" / "draw-architecture"
    checked = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stderr
