"""One logger for the library; :func:`set_identity` prefixes each line with role and rank."""

import logging
import sys

__all__ = ["get_logger", "set_identity"]

_NAME = "mpigraph"


def get_logger() -> logging.Logger:
    """Return the library's logger."""
    return logging.getLogger(_NAME)


def set_identity(identity: str, level: str) -> None:
    """Prefix every line with ``identity`` ("trainer 0/4") and set the level.

    Args:
        identity: who speaks.
        level: a name of :mod:`logging` ("WARNING", "info", ...).
    """
    logger = get_logger()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"[mpigraph {identity}] %(levelname)s %(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
