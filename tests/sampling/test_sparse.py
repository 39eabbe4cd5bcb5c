"""Requests that go to their owners alone: who asks needs nobody else, in any thread, at any time."""

import dataclasses
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import NUM_BATCHES, SAMPLERS, batch, digest
from jobs import SOON, run_script, soon
from layouts import Job, Layout, SharedJob, alone, needs_threads, on_all, on_layouts, own_on_layouts
from oracle import NAME, NUM_NODES, open_graph
from worlds import behind_head, world_of

import mpigraph.distributed as dist
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.mpi.hosts import Hosts
from mpigraph.mpi.messages import NotOpenHere
from mpigraph.mpi.wait import IDLE
from mpigraph.mpi.world import World
from mpigraph.sampling.exchanges import open_exchange
from mpigraph.sampling.local import Answers
from mpigraph.sampling.protocol import SamplingRequest, pack_request
from mpigraph.sampling.strategies import Weighted
from mpigraph.session.context import current

pytestmark = needs_threads
SAMPLING_WAYS = ("sparse",)
TRAINERS_HOST, SERVERS = Layout(2, 0, 1), Layout(4, 1, 2)
remote = on_layouts([TRAINERS_HOST, SERVERS])
own = own_on_layouts([TRAINERS_HOST, SERVERS])


@own
def test_the_setting(layout: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong word, or what MPI cannot do, is one error on every rank."""

    def kind_of(setting: str) -> str:
        with world_of(layout, sampling=setting) as world:
            return open_exchange(Hosts(world), behind_head).name

    assert [kind_of(setting) for setting in ("auto", "alltoallv", "sparse")] == ["sparse", "alltoallv", "sparse"]
    with pytest.raises(InvalidArgumentError, match=r"sampling must be auto, alltoallv or sparse \(got 'dense'\)"):
        kind_of("dense")
    with world_of(layout, sampling="sparse") as world, monkeypatch.context() as patch:
        patch.setattr(World, "threads_may_communicate", property(lambda world: world.rank != 1))
        with pytest.raises(InvalidArgumentError, match="'sparse' needs MPI_THREAD_MULTIPLE.* use auto or alltoallv"):
            open_exchange(Hosts(world), behind_head)
    monkeypatch.setattr(World, "threads_may_communicate", property(lambda world: world.rank != 1))
    assert open_in_one_thread(layout) == "alltoallv"


def open_in_one_thread(layout: Job) -> str:
    with world_of(layout) as world:
        return open_exchange(Hosts(world), behind_head).name


def sample(g: dist.DistGraph, name: str, number: int) -> str:
    sampler = SAMPLERS[name]
    return digest(g.sample_blocks(batch(number), dataclasses.replace(sampler.arguments, seed=7)))


def everything(g: dist.DistGraph) -> dict[tuple[str, int], str]:
    return {(name, number): sample(g, name, number) for name in SAMPLERS for number in range(NUM_BATCHES)}


def expected(job: SharedJob, path: str) -> dict[tuple[str, int], str]:
    return job.alone(lambda: everything(dist.DistGraph(NAME, part_config=path)))


@pytest.mark.slow
@remote
def test_a_trainer_samples_alone(job: SharedJob, oracle) -> None:
    """One after the other, while the rest waits elsewhere."""
    reference = expected(job, oracle(3))
    g = job.open(oracle(3))
    for turn in range(job.trainers.size):
        if turn == job.rank:
            assert everything(g) == reference
            hop = g.sample_neighbors(torch.arange(NUM_NODES), 3)
            assert g.has_edges_between(*hop.edges()).all() and not g.has_edges_between([0], [0]).any()
        job.trainers.Barrier()


@remote
def test_loaders_and_the_main_thread_at_once(job: SharedJob, oracle) -> None:
    """Each trainer takes its own number of steps, and leaves its loops early or not."""
    reference = expected(job, oracle(3))
    g = job.open(oracle(3))

    def collate(numbers: list[int]) -> list[tuple[int, str]]:
        return [(number, sample(g, "prob", number)) for number in numbers]

    loaders = [dist.DistDataLoader(range(NUM_BATCHES), 1, collate_fn=collate, num_prefetch=depth) for depth in (0, 2)]
    wrong = []
    for step, both in enumerate(zip(*loaders, strict=True)):
        number = step % NUM_BATCHES
        for _ in range(job.rank):
            wrong += [number] if sample(g, "uniform", number) != reference["uniform", number] else []
        for batches in both:
            wrong += [number for number, found in batches if found != reference["prob", number]]
        if step == 2 + job.rank:
            break
    on_all(job.trainers, not wrong, f"{wrong}")
    for loader in loaders:
        loader.close()


@remote
def test_who_asks_for_what_was_closed_does_not_wait_for_it(g: dist.DistGraph) -> None:
    """A thread may ask while others close what it samples with; what is to be opened yet has a higher number."""
    state = current().store
    weights = dist.DistTensor((g.num_edges(),), torch.float32, part_policy=g.edata["weight"].part_policy)
    closed = weights.rows.number
    weights.close()
    (graph,) = state.graphs.values()
    for number, error in ((closed, ClosedError), (closed + 1, NotOpenHere)):
        how, one = Weighted(1, False, number), np.ones(1, np.bool_)
        given = (graph.number, 0, one, np.arange(2), how, False, np.uint64(0))
        request = SamplingRequest(*given, tensors=np.array([[number]]))
        words = np.concatenate(pack_request(request, request.ids, request.excluded))
        with pytest.raises(error):
            Answers(state).answer(words)


@pytest.mark.slow
@own_on_layouts([TRAINERS_HOST, Layout(3, 0, 1), Layout(4, 0, 1)])
def test_hosts_that_nobody_asks_look_seldom(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """50 times a second; then they answer, and the job ends."""
    monkeypatch.setattr("mpigraph.mpi.wait.PATIENCE", 20)
    looks: list[Hosts] = []
    progress = Hosts.progress

    def look(server: Hosts) -> bool:
        looks.append(server)
        return progress(server)

    def seldom(server: Hosts) -> bool:
        begin, before = time.monotonic(), looks.count(server)
        time.sleep(0.5)
        return looks.count(server) - before <= (time.monotonic() - begin) / IDLE.quiet + 1

    monkeypatch.setattr(Hosts, "progress", look)
    path = oracle(3)

    def body() -> dict[tuple[str, int], str]:
        g = open_graph(path)
        session = current()
        assert soon(lambda: seldom(session.store.rows.hosts))  # other ranks may still ask
        session.world.trainers.Barrier()
        return everything(g)

    assert layout.run(body) == alone(lambda: everything(open_graph(path)))


@own
def test_the_job_ends_while_a_thread_samples(layout: Job, oracle) -> None:
    path, ends, counts = oracle(3), [], []

    def go_on(g: dist.DistGraph) -> None:
        try:
            while True:
                g.sample_neighbors(torch.arange(NUM_NODES), 3)
                counts.append(1)
        except ClosedError as error:
            ends.append(str(error))

    def body() -> threading.Thread:
        g = open_graph(path)
        thread = threading.Thread(target=go_on, args=(g,))
        thread.start()
        while len(counts) < 3:
            time.sleep(1e-3)
        return thread

    thread = layout.run(body)
    if thread is not None:
        thread.join()
        assert len(ends) == 1 and counts


@pytest.mark.slow
def test_a_stopped_owner_ends_the_job(tmp_path: Path, oracle) -> None:
    body = """
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.sample_neighbors(g, torch.arange(g.num_nodes()), 2)
"""
    env = {"MPIGRAPH_RANKS_PER_NODE": "1", "MPIGRAPH_SAMPLING": "sparse", "MPIGRAPH_TIMEOUT": "3"}
    status, output, seconds = run_script(tmp_path, oracle(2), body, ranks=2, servers=0, **env)
    assert status != 0 and seconds < SOON, output
    assert "sampling round 1 of calls outside of loaders" in output and "what rank(s) 1 answer" in output, output
