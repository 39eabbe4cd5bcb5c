"""Collective calls: the sentence that says so in a docstring."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

WHEN_REMOTE = "when hosts are remote; else local"
"""When sampling is collective."""

_GROUPS = {name: f"the {name}" for name in ("trainers", "ranks", "group")}


def collective(ranks: str, when: str = "") -> Callable[[F], F]:
    """Append "Collective on ..." to the docstring of a function, and return the function.

    It stands next to ``def``, below ``@property``, ``@classmethod`` and ``@contextmanager``.

    Args:
        ranks: the ranks that must make the call: "trainers", "ranks" (those that work on an input together), "group"
            (of a process group), an expression for a communicator, such as "world.comm", or other words.
        when: the condition, if the call is not always collective.
    """
    who = _GROUPS.get(ranks) or (ranks if " " in ranks else f"``{ranks}``")
    sentence = f"Collective on {who}{' ' if when else ''}{when}."

    def decorate(function: F) -> F:
        text = function.__doc__ or ""
        margin = text[text.rfind("\n") + 1 :]  # that of the closing quotes, if they stand on a line of their own
        margin = "\n" + ("" if margin.strip() else margin)
        function.__doc__ = f"{text.rstrip()}{margin}{margin}{sentence}{margin}".lstrip() if text else sentence
        return function

    return decorate
