"""Collective calls: the sentence that says so in a docstring, and a check that all trainers make the same call.

``MPIGRAPH_STRICT=1``, set before the library is imported, turns the check on. Then the main threads of all trainers
meet at the beginning of each call that is decorated with ``@collective("trainers")``, unless it is part of another one,
and of each control call. If the calls differ, every trainer raises one error with the calls, the lines of the
script, and the trainers. The watchdog reports a trainer that makes no call, as at any meeting.

The check leaves out other threads, which have channels of their own and are not in step; calls that are collective only
sometimes (``when``); and other groups of ranks: process groups always compare their calls, and servers only join what
the trainers have agreed on.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mpigraph import config

F = TypeVar("F", bound=Callable[..., Any])

WHEN_REMOTE = "when hosts are remote; else local"
"""When sampling is collective."""

_GROUPS = {name: f"the {name}" for name in ("trainers", "ranks", "group")}


class Strict:
    """The state of the check in this process.

    Attributes:
        on: whether calls are compared; decided when the library is imported.
        compare: compares a call, by its name, with those of the other trainers; set by ``session``.
    """

    on = config.strict()
    compare: Callable[[str], None] = staticmethod(lambda name: None)
    _inside = False

    @classmethod
    def begins(cls) -> bool:
        """Return whether to compare a call that begins now in this thread."""
        return cls.on and not cls._inside and threading.current_thread() is threading.main_thread()

    @classmethod
    @contextmanager
    def call(cls, name: str) -> Iterator[None]:
        """Compare the call that runs in the block, unless it is part of another one."""
        if not cls.begins():
            yield
            return
        cls.compare(name)
        cls._inside = True
        try:
            yield
        finally:
            cls._inside = False


def collective(ranks: str, when: str = "") -> Callable[[F], F]:
    """Append "Collective on ..." to the docstring of a function. In strict mode, compare the trainers' calls.

    It stands next to ``def``, below ``@property``, ``@classmethod`` and ``@contextmanager``. Without strict mode the
    function itself is returned.

    Args:
        ranks: the ranks that must make the call: "trainers", "ranks" (those that work on an input together), "group"
            (of a process group), an expression for a communicator, such as "world.comm", or other words.
        when: the condition, if the call is not always collective; then it is not compared.
    """
    who = _GROUPS.get(ranks) or (ranks if " " in ranks else f"``{ranks}``")
    sentence = f"Collective on {who}{' ' if when else ''}{when}."

    def decorate(function: F) -> F:
        text = function.__doc__ or ""
        margin = text[text.rfind("\n") + 1 :]  # that of the closing quotes, if they stand on a line of their own
        margin = "\n" + ("" if margin.strip() else margin)
        function.__doc__ = f"{text.rstrip()}{margin}{margin}{sentence}{margin}".lstrip() if text else sentence
        return _compared(function) if Strict.on and ranks == "trainers" and not when else function

    return decorate


def _compared(function: F) -> F:
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def compared(*args: Any, **kwargs: Any) -> Any:
        with Strict.call(name):
            return function(*args, **kwargs)

    return compared  # type: ignore[return-value]
