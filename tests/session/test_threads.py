"""The page "Threads and locks" of mpigraph/README.md against running jobs and the source."""

import re
import threading
from typing import Any

import numpy as np
import pytest
from layouts import ALONE, Job, Layout, own_on_layouts
from oracle import NUM_NODES, open_graph
from sources import FILES, section

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.session import control
from mpigraph.session.control import Operation
from mpigraph.store.store import Store


def table(text: str, first: str) -> list[list[str]]:
    """The rows of the table whose first heading is ``first``."""
    lines = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def names() -> list[str]:
    """The threads of this process that the library has, of pools the pool."""
    found = [thread.name.partition("_")[0] for thread in threading.enumerate()]
    return sorted({name for name in found if name.startswith("mpigraph-") or name == "MainThread"})


def test_the_page_has_locks_that_exist() -> None:
    source = "\n".join(FILES.values())
    for name, *_ in table(section("Threads and locks"), "lock"):
        for owner, _, attribute in (part.partition(".") for part in re.findall(r"`([\w.]+)`", name)):
            bodies = [after.split("\nclass ")[0] for after in re.split(rf"class {owner}\b", source)[1:]]
            assert any(not attribute or f"self.{attribute} = " in body for body in bodies), name


def test_a_minibatch_has_few_concepts() -> None:
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section("One minibatch"), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1)) and 10 < len(numbers) <= 20


@own_on_layouts([ALONE, Layout(2, 0, 1), Layout(4, 1, 2), Layout(4, 0, 2)])
def test_a_running_job_has_the_threads_of_the_page(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a loader in the middle of an epoch; on servers inside a control call."""
    path, found = oracle(2), dict[str, Any]()
    where = {row[0].strip("`"): row[1] for row in table(section("Threads and locks"), "thread")}

    def note(store: Store, args: dict[str, Any]) -> None:
        world = store.world
        multiple, asked = world.threads_may_communicate, world.is_host and not world.all_local
        found["names"] = names()
        found["expected"] = sorted(
            name
            for name, here in {
                "MainThread": True,
                "mpigraph-host": asked and multiple,
                "mpigraph-progress": world.is_trainer and not asked and multiple,
                "mpigraph-watchdog": True,
                "mpigraph-prefetch": world.is_trainer and multiple,
            }.items()
            if here
        )

    monkeypatch.setitem(control._HANDLERS, Operation.BARRIER, note)

    def body() -> None:
        g = open_graph(path)
        loader = dist.DistNodeDataLoader(g, np.arange(NUM_NODES), NeighborSampler([2]), batch_size=1)
        batches = iter(loader)
        next(batches)
        g.barrier()
        batches.close()
        loader.close()

    layout.run(body)
    if found:
        assert found["names"] == found["expected"] and {*found["names"]} <= where.keys()
