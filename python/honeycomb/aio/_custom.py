"""The hand-written part of the twin of structures of custom kinds."""

from __future__ import annotations

from honeycomb.aio._twin import RemoteTwin
from honeycomb.custom import Custom


class CustomBase(RemoteTwin[Custom]):
    """The twin of :class:`honeycomb.Custom`; ``blocking`` is the blocking structure. A cancelled mutation
    may or may not take effect; cancelling a call that waits ends its wait."""
