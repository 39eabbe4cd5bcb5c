"""Roles: who serves, who trains, and who is local, on every layout."""

import logging
import os
import threading
from pathlib import Path

import pytest
from layouts import WAIT, Job, on_all
from mpi4py import MPI
from worlds import flat_world, world_of

from mpigraph.config import Config
from mpigraph.errors import ClosedError, CollectiveError, InvalidArgumentError
from mpigraph.mpi import world as worlds
from mpigraph.mpi.start import machine
from mpigraph.mpi.world import World, choose_servers, memory_domain


def test_roles(layout: Job) -> None:
    ranks, servers, per_node = layout.layout
    per_node = per_node or ranks
    nodes = [list(range(ranks))[i : i + per_node] for i in range(0, ranks, per_node)]
    kept = 0 if ranks == 1 else servers
    trainers = [rank for node in nodes for rank in node[: len(node) - kept]]
    serving = [rank for node in nodes for rank in node[len(node) - kept :]]
    hosts = serving or list(range(ranks))
    with world_of(layout) as world:
        peers = next(node for node in nodes if world.rank in node)
        assert (world.rank, world.size) == (layout.comm.rank, ranks)
        assert (world.num_nodes, world.node_index) == (len(nodes), nodes.index(peers))
        assert (world.node.size, world.node.rank) == (len(peers), peers.index(world.rank))
        assert world.trainer_ranks.tolist() == trainers
        assert world.hosts.tolist() == hosts
        assert world.is_local.tolist() == [host in peers for host in hosts]
        assert world.all_local == (len(nodes) == 1)
        assert world.is_trainer == (world.rank in trainers)
        assert world.is_host == (world.rank in hosts)
        assert world.host_index == (hosts.index(world.rank) if world.is_host else -1)
        assert world.num_local_trainers == len(peers) - kept
        for index, host in enumerate(hosts):
            node = next(node for node in nodes if host in node)
            on_its_node = world.nodes_of_trainers == world.nodes_of_hosts[index]
            assert world.trainer_ranks[on_its_node].tolist() == [rank for rank in node if rank in trainers]
        for index, trainer in enumerate(trainers):
            node = next(node for node in nodes if trainer in node)
            local = [i for i, host in enumerate(hosts) if host in node]
            assert world.neighbourhood(index) == (local, node.index(trainer), len(node) - kept)
        if world.is_trainer:
            assert world.trainers.rank == trainers.index(world.rank)
            assert world.local_trainer == world.local_rank == peers.index(world.rank)
            assert world.identity == f"trainer {world.trainers.rank}/{len(trainers)} (rank {world.rank})"
            assert world.allreduce_sum(world.rank) == sum(trainers)
            assert world.allreduce_minmax(world.rank, largest=True) == max(trainers)
            assert world.allreduce_minmax(world.rank, largest=False) == min(trainers)
            address, port = world.rendezvous()
            copy = world.trainers.Dup()
            assert copy.ranks == world.trainers.ranks == trainers
            copy.Free()
            assert set(world.trainers.allgather((address, port))) == {(address, port)}
            assert 0 < port < 65536
        else:
            assert world.trainers == MPI.COMM_NULL and world.local_trainer == -1
            assert world.identity == f"server (rank {world.rank})"
    world.close()  # a second time
    with pytest.raises(ClosedError):
        world.dup()


def test_each_thread_forbids_its_own_meetings(comm: MPI.Intracomm) -> None:
    """Another thread's end of that does not allow them, and does not forbid those of a third."""
    with flat_world(comm) as world:
        inside, go = threading.Event(), threading.Event()
        errors: list[str] = []

        def layer() -> None:
            with world.forbid_meetings("a layer"):
                inside.set()
                go.wait(WAIT)
                with pytest.raises(CollectiveError) as caught, world.meeting("a barrier"):
                    pass
                errors.append(str(caught.value))

        thread = threading.Thread(target=layer)
        thread.start()
        assert inside.wait(WAIT)
        with world.forbid_meetings("a step"), pytest.raises(CollectiveError, match="a barrier: a step cannot do it"):
            with world.meeting("a barrier"):
                pass
        with world.meeting("a barrier"):
            go.set()
            thread.join()
        on_all(comm, len(errors) == 1 and "a barrier: a layer cannot do it" in errors[0], str(errors))


def test_impossible_roles_raise_on_every_rank(comm: MPI.Intracomm) -> None:
    if comm.size > 1:
        with pytest.raises(InvalidArgumentError, match=rf"node 0, which has {comm.size} rank"):
            World(comm, comm.size, Config(timeout=WAIT))
        with pytest.raises(InvalidArgumentError, match=r"node 0, which has 1 rank"):
            World(comm, 1, Config(ranks_per_node=1, timeout=WAIT))
    if comm.size == 3:  # on nodes of two ranks and of one
        with pytest.raises(InvalidArgumentError, match=r"leaves no trainer on node 1, which has 1 rank"):
            World(comm, 1, Config(ranks_per_node=2, timeout=WAIT))
    comm.Barrier()


def test_a_machine_that_mpi_divides_is_told_and_counted_as_one(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As Open MPI 5 does under ``srun --mpi=pmix``: each rank is a node of its own."""

    def divide(world: World, ranks_per_node: int) -> MPI.Intracomm:
        return world.comm.Split(world.rank)

    monkeypatch.setattr(World, "_split_node", divide)
    words = f"{comm.size} nodes on 1 machine"
    world = World(comm, 0, Config(timeout=WAIT))
    assert (world.num_nodes, world.local_trainer, world.local_rank) == (comm.size, 0, comm.rank)
    assert (words in world.divided) == (comm.size > 1)
    handlers = logging.getLogger("mpigraph").handlers[:]
    world.introduce()
    assert (words in capfd.readouterr().err) == (comm.size > 1 == comm.rank + 1)
    logging.getLogger("mpigraph").handlers[:] = handlers
    world.close()
    if comm.size > 1:
        with pytest.raises(InvalidArgumentError, match=rf"node 0, which has 1 rank\(s\): .*{words}.*--mpi=pmix"):
            World(comm, 1, Config(timeout=WAIT))
    comm.Barrier()


def test_processes_of_one_machine(tmp_path: Path) -> None:
    """Another boot, or another ``/dev/shm``, is another machine."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    shm = tmp_path / "self/root/dev/shm"
    shm.mkdir(parents=True)
    assert machine() == machine()
    seen = {machine(), machine(tmp_path)}
    (tmp_path / "sys/kernel/random/boot_id").write_text("another")
    seen.add(machine(tmp_path))
    shm.rmdir()
    shm.symlink_to("/dev/shm")
    seen.add(machine(tmp_path))
    assert len(seen) == 4


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
