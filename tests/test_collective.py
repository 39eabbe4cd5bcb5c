"""The decorator of collective calls."""

import inspect
import pickle

import pytest

from mpigraph.collective import WHEN_REMOTE, collective


class Thing:
    """A class with collective calls."""

    @collective("trainers")
    def __init__(self, size: int = 3) -> None:
        """Make it."""
        self.size = size

    @property
    @collective("trainers")
    def total(self) -> int:
        return self.size


@collective("trainers")
def outer(count: int, *, fails: bool = False) -> int:
    """Call others."""
    return Thing(count).total


@pytest.mark.parametrize(
    ("ranks", "when", "sentence"),
    [
        ("trainers", "", "Collective on the trainers."),
        ("trainers", WHEN_REMOTE, "Collective on the trainers when hosts are remote; else local."),
        ("all ranks", "", "Collective on all ranks."),
        ("world.comm", "in step", "Collective on ``world.comm`` in step."),
    ],
)
def test_the_sentence_is_appended(ranks: str, when: str, sentence: str) -> None:
    def bare() -> None: ...

    def short() -> None:
        """Do it."""

    def long() -> None:
        """Do it.

        Raises:
            ValueError: always.
        """

    docs = [inspect.getdoc(collective(ranks, when)(function)) for function in (bare, short, long)]
    assert docs == [sentence, f"Do it.\n\n{sentence}", f"Do it.\n\nRaises:\n    ValueError: always.\n\n{sentence}"]


def test_nothing_else_about_the_function_changes() -> None:
    assert str(inspect.signature(outer)) == "(count: int, *, fails: bool = False) -> int"
    assert str(inspect.signature(Thing)) == "(size: int = 3) -> None"
    assert pickle.loads(pickle.dumps(outer)) is outer
    assert outer.__name__ == "outer" and Thing.total.fget.__doc__ == "Collective on the trainers."
