"""The lines of the user's script in a stack or a traceback, for messages that name them."""

import os
from functools import cache
from types import FrameType

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"
_NOT_THE_USERS = (_HERE, "<frozen", os.path.dirname(os.__file__) + os.sep)


@cache
def is_users(path: str) -> bool:
    """Return whether a source file is the user's: neither of this library, nor of Python, nor installed."""
    return not path.startswith(_NOT_THE_USERS) and _INSTALLED not in path


def line_calling(frame: FrameType | None) -> str:
    """Return the innermost of the user's lines among a frame and its callers, as "train.py:12"; "" without one."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def stack_level(frame: FrameType | None) -> int:
    """Return the ``stacklevel`` that makes a warning in a frame show the user's line."""
    level = 1
    while frame is not None and not is_users(frame.f_code.co_filename):
        level += 1
        frame = frame.f_back
    return level


def line_of(error: BaseException) -> str:
    """Return the last of the user's lines in an error's traceback, as "train.py:12"; "" without one."""
    line = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if is_users(path):
            line = f"{os.path.basename(path)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line
