"""The decorator of collective calls: what it writes, and what it compares in strict mode."""

import inspect
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpigraph.collective import WHEN_REMOTE, Strict, collective

PLAIN = "import mpigraph.collective as c; f = lambda: 0; assert c.collective('trainers')(f) is f"


class Thing:
    """A class with every kind of collective call."""

    @collective("trainers")
    def __init__(self, size: int = 3) -> None:
        """Make it."""
        self.size = size

    @property
    @collective("trainers")
    def total(self) -> int:
        return self.size

    @classmethod
    @collective("trainers")
    def made(cls) -> "Thing":
        """Make one.

        Returns:
            It.
        """
        return cls(4)

    @contextmanager
    @collective("trainers")
    def opened(self) -> Iterator[int]:
        """Open it."""
        yield self.size

    @collective("trainers", WHEN_REMOTE)
    def sample(self) -> int:
        """Sample."""
        return 1


@collective("trainers")
def outer(count: int, *, fails: bool = False) -> int:
    """Call others."""
    if fails:
        raise ValueError(count)
    return Thing(count).total


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(Strict, "compare", names.append)
    return names


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


def test_only_the_outermost_call_is_compared(calls: list[str]) -> None:
    assert outer(2) == 2 and calls == ["outer"]
    thing = Thing.made()
    assert thing.total == thing.size == 4 and thing.sample() == 1
    with thing.opened() as size:
        assert size == 4
    assert calls == ["outer", "Thing.made", "Thing.total", "Thing.opened"]


def test_a_call_that_fails_is_over(calls: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="7"):
            outer(7, fails=True)
    assert calls == ["outer", "outer"]


def test_other_threads_are_not_compared(calls: list[str]) -> None:
    thread = threading.Thread(target=outer, args=(1,))
    thread.start()
    thread.join()
    assert calls == []


def test_nothing_else_about_the_function_changes() -> None:
    assert str(inspect.signature(outer)) == "(count: int, *, fails: bool = False) -> int"
    assert str(inspect.signature(Thing)) == "(size: int = 3) -> None"
    assert pickle.loads(pickle.dumps(outer)) is outer
    assert outer.__name__ == "outer" and Thing.total.fget.__doc__ == "Collective on the trainers."


def test_without_strict_mode_it_is_the_function_itself() -> None:
    env = {name: value for name, value in os.environ.items() if name != "MPIGRAPH_STRICT"}
    subprocess.run([sys.executable, "-c", PLAIN], env=env, check=True)
