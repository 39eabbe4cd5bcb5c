"""Progress of long-running work: a function that is called with (stage, done, total).

A stage begins with its first call, before its first step, and ends when ``done`` reaches ``total``, an estimate until
then. A stage of one step has no known progress, such as METIS.
"""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
