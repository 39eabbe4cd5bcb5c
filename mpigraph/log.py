"""One logger for the library, whose lines :func:`set_identity` prefixes with role and rank; the user's lines in stacks.

Messages name the line of the user's script, by a stack or a traceback.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType, TracebackType

_NAME = "mpigraph"
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"
_NOT_THE_USERS = (_HERE, "<frozen", "<string>", os.path.dirname(os.__file__) + os.sep)


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


@cache
def _is_users(path: str) -> bool:
    """Return whether a source file is the user's: neither of this library, nor of Python, nor installed."""
    return not path.startswith(_NOT_THE_USERS) and _INSTALLED not in path


def line_calling(frame: FrameType | None) -> str:
    """Return the innermost of the user's lines among a frame and its callers, as "train.py:12"; "" without one."""
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def stack_level(frame: FrameType | None) -> int:
    """Return the ``stacklevel`` that makes a warning in a frame show the user's line."""
    level = 1
    while frame is not None and not _is_users(frame.f_code.co_filename):
        level += 1
        frame = frame.f_back
    return level


def lines_of(error: BaseException) -> list[TracebackType]:
    """Return the user's lines in an error's traceback, the outermost first."""
    lines, trace = [], error.__traceback__
    while trace is not None:
        if _is_users(trace.tb_frame.f_code.co_filename):
            lines.append(trace)
        trace = trace.tb_next
    return lines


def line_of(error: BaseException) -> str:
    """Return the last of the user's lines in an error's traceback, as "train.py:12"; "" without one."""
    lines = lines_of(error)
    return f"{os.path.basename(lines[-1].tb_frame.f_code.co_filename)}:{lines[-1].tb_lineno}" if lines else ""
