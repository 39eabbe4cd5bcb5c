"""Roles: who serves, who trains, and who is near, on every layout."""

import pytest
from layouts import WAIT, Job
from mpi4py import MPI
from worlds import world_of

from mpigraph.config import Config
from mpigraph.errors import (
    ClosedError,
    InvalidArgumentError,
)
from mpigraph.mpi.world import World


def test_roles(layout: Job) -> None:
    ranks, servers, per_node = layout.layout
    per_node = per_node or ranks
    nodes = [list(range(ranks))[i : i + per_node] for i in range(0, ranks, per_node)]
    kept = 0 if ranks == 1 else servers
    trainers = [rank for node in nodes for rank in node[: len(node) - kept]]
    serving = [rank for node in nodes for rank in node[len(node) - kept :]]
    hosts = serving or list(range(ranks))
    with world_of(layout) as world:
        mine = next(node for node in nodes if world.rank in node)
        assert (world.rank, world.size) == (layout.comm.rank, ranks)
        assert (world.num_nodes, world.node_index) == (len(nodes), nodes.index(mine))
        assert (world.node.size, world.node.rank) == (len(mine), mine.index(world.rank))
        assert world.trainer_ranks.tolist() == trainers
        assert world.hosts.tolist() == hosts
        assert world.near.tolist() == [host in mine for host in hosts]
        assert world.all_near == (len(nodes) == 1)
        assert world.is_trainer == (world.rank in trainers)
        assert world.is_host == (world.rank in hosts)
        assert world.host_index == (hosts.index(world.rank) if world.is_host else -1)
        assert world.num_local_trainers == len(mine) - kept
        for index, host in enumerate(hosts):
            node = next(node for node in nodes if host in node)
            assert world.trainers_of_host(index) == [rank for rank in node if rank in trainers]
        for index, trainer in enumerate(trainers):
            node = next(node for node in nodes if trainer in node)
            near = [i for i, host in enumerate(hosts) if host in node]
            assert world.neighbourhood(index) == (near, node.index(trainer), len(node) - kept)
        if world.is_trainer:
            assert world.trainers.rank == trainers.index(world.rank)
            assert world.local_trainer == mine.index(world.rank)
            assert world.identity == f"trainer {world.trainers.rank}/{len(trainers)} (rank {world.rank})"
            assert world.allreduce_sum(world.rank) == sum(trainers)
            assert world.allreduce_minmax(world.rank, largest=True) == max(trainers)
            assert world.allreduce_minmax(world.rank, largest=False) == min(trainers)
            address, port = world.rendezvous()
            assert set(world.trainers.allgather((address, port))) == {(address, port)}
            assert 0 < port < 65536
        else:
            assert world.trainers == MPI.COMM_NULL and world.local_trainer == -1
            assert world.identity == f"server (rank {world.rank})"
    world.close()  # a second time
    with pytest.raises(ClosedError):
        world.dup()


def test_impossible_roles_raise_on_every_rank(comm: MPI.Intracomm) -> None:
    with pytest.raises(InvalidArgumentError, match=r"num_servers must be >= 0 \(got -1\)"):
        World(comm, -1, Config(timeout=WAIT))
    if comm.size > 1:
        with pytest.raises(InvalidArgumentError, match=rf"node 0, which has {comm.size} rank"):
            World(comm, comm.size, Config(timeout=WAIT))
        with pytest.raises(InvalidArgumentError, match=r"node 0, which has 1 rank"):
            World(comm, 1, Config(ranks_per_node=1, timeout=WAIT))
    comm.Barrier()
