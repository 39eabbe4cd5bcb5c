"""How long-running work reports its progress: a function that is called with (stage, done, total).

A stage begins with its first call, before its first step, and ends when ``done`` reaches ``total``. In between both may
change: ``total`` is an estimate until the end. A stage of one step is one whose progress nobody knows, such as METIS.
"""

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Progress", "silent"]

Progress: TypeAlias = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Report to nobody."""
