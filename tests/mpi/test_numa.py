"""The ranks that serve, chosen by the processors they run on."""

import os
from pathlib import Path

import pytest
from layouts import WAIT, on_all

from mpigraph.config import Config
from mpigraph.mpi import world as worlds
from mpigraph.mpi.world import World, choose_servers, memory_domain


def test_servers_are_taken_from_every_processor_in_turn() -> None:
    assert choose_servers([-1] * 8, 2) == [6, 7]  # not bound: the last ones
    assert choose_servers([0] * 4, 3) == [1, 2, 3]
    assert choose_servers([0, 0, 0, 0, 1, 1, 1, 1], 2) == [3, 7]  # ranks fill one processor after the other
    assert choose_servers([0, 1, 0, 1, 0, 1, 0, 1], 2) == [6, 7]  # or are dealt out in turn
    assert choose_servers([0, 0, 0, 0, 1, 1, 1, 1], 1) == [7]
    assert choose_servers([0, 0, 0, 0, 1, 1, 1, 1], 3) == [3, 6, 7]
    assert choose_servers([0, 0, 0, 1], 2) == [2, 3]
    assert choose_servers([0, 1], 0) == [] and choose_servers([0], 2) == [0]


def test_the_processor_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, cores in enumerate(("0-3,8-11", "4-7,12", "")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(f"{cores}\n")
    bound = set[int]()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: bound, raising=False)
    for cores, domain in (({9, 2}, 0), ({12}, 1), ({3, 4}, -1), ({99}, -1)):
        bound.clear()
        bound.update(cores)
        assert memory_domain(tmp_path) == domain
    assert memory_domain(tmp_path / "no") == -1


@pytest.mark.parametrize("comm", [4], indirect=True)
def test_roles_follow_the_processors(comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processors, ranks 0 and 1 on the first: with two servers one of each serves, trainers count on."""
    monkeypatch.setattr(worlds, "memory_domain", lambda: comm.rank // 2)
    world = World(comm, 2, Config(timeout=WAIT))
    ok = world.hosts.tolist() == [1, 3] and world.trainer_ranks.tolist() == [0, 2]
    ok &= world.local_trainer == {0: 0, 2: 1}.get(comm.rank, -1) and world.num_local_trainers == 2
    ok &= world.host_index == {1: 0, 3: 1}.get(comm.rank, -1)
    ok &= [ranks.tolist() for ranks in world.serving(1)] == [[3]]
    world.close()
    on_all(comm, ok)
