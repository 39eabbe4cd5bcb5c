"""One logger for the library; :func:`set_identity` prefixes each line with role and rank."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NAME = "mpigraph"


def get_logger() -> logging.Logger:
    """Return the library's logger."""
    return logging.getLogger(_NAME)


@contextmanager
def muted(is_muted: bool) -> Iterator[None]:
    """Suppress warnings in a block if ``is_muted``, where a rank would repeat another one's; errors are logged."""
    logger = get_logger()
    level = logger.level
    if is_muted:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def set_identity(identity: str, level: str) -> None:
    """Prefix every line with ``identity`` ("trainer 0/4") and set the level.

    Args:
        identity: role and rank.
        level: a name of :mod:`logging` ("WARNING", "info", ...).
    """
    logger = get_logger()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"[mpigraph {identity}] %(levelname)s %(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
