"""Random walks: each step against brute force, the draws against their probabilities, and the same on every layout."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
import typed_oracle as typed
from layouts import SharedJob, everywhere, on_all, rotated, several
from oracle import NAME, NUM_NODES, in_memory
from scipy.stats import chisquare
from typed_oracle import typed_in_memory, write_typed_oracle

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.dataloading import BlockSampler, pack_traces, random_walk
from mpigraph.errors import (
    ClosedError,
    EdgeTypeError,
    FieldNameError,
    InvalidArgumentError,
    MPIGraphError,
    OutOfRangeError,
    SharedMemoryError,
)
from mpigraph.metadata.schema import DEFAULT_ETYPE
from mpigraph.rows import segments, shm_check
from mpigraph.rows.window import RowWindow
from mpigraph.store import turned
from mpigraph.store.derived import fetch_together

SAMPLING_WAYS = ("alltoallv", "sparse")
METAPATH = ["writes", "cites", "written_by", "reads", "in"]
STEPS = 6
OPTIONS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "weights": {"prob": "weight"},
    "mask": {"prob": "even"},
    "restarts": {"restart_prob": [0.0, 0.1, 0.5, 0.0, 0.2, 0.9]},
}


def roots(rank: int, trainers: int) -> torch.Tensor:
    """A share of all nodes, each of them three times."""
    return torch.arange(rank, NUM_NODES, trainers).repeat(3)


def check_walks(g: Any, relations: list[Any], weight: Callable[[torch.Tensor], Any] | None, walked: Any) -> None:
    """Each step is along an edge that may be drawn, and a walk ends only where there is none."""
    traces, eids, _ = walked
    for step, relation in enumerate(relations):
        src, dst = g.find_edges(torch.arange(g.num_edges(relation)), relation)
        drawable = np.ones(len(src), bool) if weight is None else np.asarray(weight(torch.arange(len(src)))) > 0
        degrees = np.bincount(src[drawable], minlength=g.num_nodes(relation[0]))
        at, to, edges = traces[:, step], traces[:, step + 1], eids[:, step]
        going = to >= 0
        assert torch.equal(src[edges[going]], at[going]) and torch.equal(dst[edges[going]], to[going])
        assert drawable[edges[going]].all() and (edges[~going] == -1).all()
        assert (degrees[at[(at >= 0) & ~going]] == 0).all()


def walks_of(g: Any, nodes: torch.Tensor, name: str) -> tuple[torch.Tensor, ...]:
    return random_walk(g, nodes, length=STEPS, return_eids=True, seed=3, **OPTIONS[name])


@everywhere
@rotated(3)
@pytest.mark.parametrize("num_parts", [1, 3, 4])
def test_walks_are_the_same_in_every_layout(job: SharedJob, oracle, num_parts: int) -> None:
    expected = {name: walks_of(in_memory(), roots(0, 1), name) for name in OPTIONS}
    g = job.open(oracle(num_parts, "given"))
    trainers = job.trainers.size
    own = np.concatenate([np.arange(job.rank, NUM_NODES, trainers) + NUM_NODES * copy for copy in range(3)])
    for name in OPTIONS:
        found = walks_of(g, roots(job.rank, trainers), name)
        same = all(torch.equal(a, b[own]) for a, b in zip(found[:2], expected[name][:2], strict=True))
        on_all(job.trainers, same and found[2].tolist() == [0] * (STEPS + 1), name)
        if "restart_prob" not in OPTIONS[name]:
            feature = OPTIONS[name].get("prob")
            check_walks(g, [DEFAULT_ETYPE] * STEPS, feature and g.edata[feature].__getitem__, found)


@everywhere
def test_walks_along_a_metapath_are_the_same_in_every_layout(job: SharedJob) -> None:
    memory = typed_in_memory()
    everyone = torch.arange(typed.NUM_NODES["author"])
    expected = random_walk(memory, everyone, metapath=METAPATH, return_eids=True, seed=3)
    g = job.open(job.write(write_typed_oracle, 3))
    own = everyone[job.rank :: job.trainers.size]
    found = random_walk(g, own, metapath=METAPATH, return_eids=True, seed=3)
    same = all(torch.equal(a, b[own]) for a, b in zip(found[:2], expected[:2], strict=True))
    types = [typed.SCHEMA.ntype_id(t) for t in ("author", "paper", "paper", "author", "paper", "venue")]
    on_all(job.trainers, same and found[2].tolist() == types)
    check_walks(g, [typed.SCHEMA.to_canonical(name) for name in METAPATH], None, found)
    assert (expected[0] == -1).any() and (expected[0][:, -1] >= 0).any()


def test_a_step_takes_each_edge_by_its_weight() -> None:
    g = mg.graph((torch.tensor([0] * 5 + [1]), torch.tensor([1, 2, 3, 4, 1, 0])))
    weights = np.array([1.0, 2.0, 0.0, 4.0, 3.0, 1.0])
    g.edata["weight"] = torch.from_numpy(weights)
    g.edata["mask"] = torch.from_numpy(weights != 2)
    shares = {None: np.ones(5), "weight": weights[:5], "mask": weights[:5] != 2}
    for prob, share in shares.items():
        _, eids, _ = random_walk(g, [0] * 20_000, length=1, prob=prob, return_eids=True, seed=1)
        counts, possible = np.bincount(eids[:, 0], minlength=5), np.asarray(share) > 0
        assert counts[~possible].sum() == 0
        assert chisquare(counts[possible], 20_000 * share[possible] / share.sum()).pvalue > 1e-3


def test_walks_from_one_node_and_their_steps_are_independent() -> None:
    """On the complete graph of four nodes with loops the pairs of two walks, and of two steps, are equally likely."""
    src, dst = torch.cartesian_prod(torch.arange(4), torch.arange(4)).T
    traces, _ = random_walk(mg.graph((src, dst)), [2] * 16_000, length=3, seed=5)
    for first, second in (
        (traces[::2, 1], traces[1::2, 1]),
        (traces[:, 1], traces[:, 2]),
        (traces[:, 1], traces[:, 3]),
    ):
        assert chisquare(np.bincount(4 * first + second, minlength=16)).pvalue > 1e-3


def test_walks_end_with_their_probability_before_each_step() -> None:
    ring = mg.graph((torch.arange(7), (torch.arange(7) + 1) % 7))
    ends = [0.0, 0.3, 1e-9, 0.6]
    traces, _ = random_walk(ring, torch.arange(7).repeat(3000), length=4, restart_prob=torch.tensor(ends), seed=2)
    length = (traces >= 0).sum(1) - 1
    assert torch.equal(
        traces, torch.where(torch.arange(5) <= length[:, None], (traces[:, :1] + torch.arange(5)) % 7, -1)
    )
    expected = 21_000 * np.array([0.3, 0.7 * 0.6, 0.7 * 0.4])
    assert chisquare(np.bincount(length, minlength=5)[[1, 3, 4]], expected, sum_check=False).pvalue > 1e-3
    for step in range(4):  # as in DGL: before the step
        certain = [float(step == before) for before in range(4)]
        traces, _ = random_walk(ring, [0], length=4, restart_prob=certain)
        assert ((traces[0] >= 0).sum() - 1) == step
    assert random_walk(ring, [0, 1], length=2, restart_prob=1.0)[0].tolist() == [[0, -1, -1], [1, -1, -1]]


def test_weights_of_no_edges() -> None:
    """Their tensor has a stride of 0, as numpy's empty arrays may have."""
    g = mg.graph(([], []), num_nodes=2)
    g.edata["weight"] = torch.empty(0).as_strided((0,), (0,))
    assert random_walk(g, [1], length=1, prob="weight")[0].tolist() == [[1, -1]]


def test_two_calls_differ_and_a_seed_repeats_them() -> None:
    g = in_memory()
    calls = [random_walk(g, torch.arange(NUM_NODES), length=5)[0] for _ in range(2)]
    assert not torch.equal(*calls)
    seeded = [random_walk(g, torch.arange(NUM_NODES), length=5, seed=8)[0] for _ in range(2)]
    assert torch.equal(*seeded)
    assert random_walk(g, [], length=2)[0].shape == (0, 3) and random_walk(g, [5], length=0)[0].tolist() == [[5]]


def test_traces_are_packed_as_in_dgl() -> None:
    """The example of DGL's documentation."""
    traces, types = torch.tensor([[0, 1, -1, -1], [0, 1, 1, 3]]), torch.tensor([0, 0, 1, 0])
    packed = [column.tolist() for column in pack_traces(traces, types)]
    assert packed == [[0, 1, 0, 1, 1, 3], [0, 0, 0, 0, 1, 0], [2, 4], [0, 2]]


WRONG: list[tuple[type[MPIGraphError], str, dict[str, Any]]] = [
    (InvalidArgumentError, "give metapath or length", {}),
    (InvalidArgumentError, "give metapath or length", {"length": 2, "metapath": ["_E"]}),
    (InvalidArgumentError, "length must be an integer >= 0", {"length": -1}),
    (InvalidArgumentError, "metapath must be a list", {"metapath": []}),
    (EdgeTypeError, "nope", {"metapath": ["_E", "nope"]}),
    (FieldNameError, "nope", {"length": 2, "prob": "nope"}),
    (InvalidArgumentError, "one for each of 2 steps", {"length": 2, "restart_prob": [0.1, 0.2, 0.3]}),
    (InvalidArgumentError, "restart_prob must be a probability", {"length": 2, "restart_prob": 1.5}),
    (InvalidArgumentError, "restart_prob must be a probability", {"length": 1, "restart_prob": "often"}),
    (OutOfRangeError, "node id", {"length": 1, "nodes": [3, NUM_NODES]}),
]


def refused(g: Any, error: type[MPIGraphError], text: str, arguments: dict[str, Any]) -> bool:
    try:
        random_walk(g, arguments.get("nodes", [1]), **{name: arguments[name] for name in arguments if name != "nodes"})
    except error as raised:
        return text in str(raised)
    return False


def test_wrong_arguments_are_named(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    for once_more in range(2):
        for wrong in WRONG:
            on_all(job.trainers, refused(g, *wrong), f"{once_more} {wrong}")
        random_walk(g, [1], length=1)
    assert refused(in_memory(), *WRONG[0]) and refused(typed_in_memory(), EdgeTypeError, "", {"length": 2})
    path = {"metapath": ["writes", "in", "reads"]}
    assert refused(typed_in_memory(), EdgeTypeError, "at position 2 does not begin where", path)


@several
def test_a_wrong_argument_of_one_trainer_hangs_no_other(job: SharedJob, oracle) -> None:
    """Before the hosts have out-edges, with them, and when the others first ask for weights in that order."""
    for prob in (None, None, "weight"):
        g = job.open(oracle(3))
        walk = partial(random_walk, g, length=1, prob=prob)
        try:
            walk([NUM_NODES + 1] if job.rank == 0 else [1])
            failed = False
        except MPIGraphError as error:
            failed = "out of range" in str(error)
        on_all(job.trainers, failed or job.rank > 0)
        on_all(job.trainers, walk([1])[0].shape == (1, 2))


@several
def test_a_wrong_path_or_feature_of_one_trainer_is_raised_on_all_that_prepare(job: SharedJob, monkeypatch) -> None:
    """It cannot know that the others have yet to prepare theirs. Where trainers do not sample in rounds, it raises."""
    g = job.open(job.write(write_typed_oracle, 2))
    g.prepare_walks(["cites"])
    rounds = g.session.world.config.sampling == "alltoallv" and not g.session.world.all_local
    for wrong in ({"metapath": ["writes", "nope"]}, {"metapath": ["writes"], "prob": "nope"}):
        if job.rank > 0 and not rounds:
            continue
        with pytest.raises(MPIGraphError, match="nope"):
            random_walk(g, [1], **(wrong if job.rank == 0 else {"metapath": ["writes"]}))
    on_all(job.trainers, random_walk(g, [1], metapath=["writes"])[0].shape == (1, 2))


@pytest.mark.parametrize("of", ["graph", "out-edges"])
def test_the_structure_is_read_to_the_end_when_the_job_ends(oracle, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """By another thread; later reads are refused."""
    from layouts import alone

    reading, leaving, found = threading.Event(), threading.Event(), list[Any]()
    at_once = RowWindow._read

    def slowly(*what: Any) -> None:
        reading.set()
        leaving.wait()
        at_once(*what)

    def body() -> tuple[Any, Any, threading.Thread]:
        g = dist.DistGraph(NAME, part_config=oracle(3))
        g.prepare_walks()
        topology, ids = g.loaded.topology, np.arange(NUM_NODES)
        read = topology.out_degrees if of == "graph" else lambda edges, relation: topology.turned.eids(relation, edges)
        expected = read(ids, 0)
        monkeypatch.setattr(RowWindow, "_read", slowly)
        thread = threading.Thread(target=lambda: found.append(read(ids, 0)))
        thread.start()
        reading.wait()
        threading.Timer(0.2, leaving.set).start()
        return read, expected, thread

    read, expected, thread = alone(body)
    thread.join()
    assert len(found) == 1 and np.array_equal(found[0], expected)
    with pytest.raises(ClosedError):
        read(np.arange(3), 0)


def test_weights_that_are_written_count_after_the_next_barrier(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    old = g.edata["weight"][torch.arange(g.num_edges())]
    random_walk(g, [1], length=1, prob="weight")
    for even in (0, 1):
        if job.rank == 0:
            g.edata["weight"][torch.arange(g.num_edges())] = (torch.arange(g.num_edges()) % 2 == even).float()
        g.barrier()
        _, eids, _ = random_walk(g, torch.arange(NUM_NODES), length=1, prob="weight", return_eids=True)
        drawn = eids[eids >= 0]
        on_all(job.trainers, len(drawn) > 0 and bool((drawn % 2 == even).all()))
    if job.rank == 0:
        g.edata["weight"][torch.arange(g.num_edges())] = old
    g.barrier()


def test_copies_of_weights_are_freed_once_hosts_have_tables(oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    from layouts import alone

    copies: list[ref[Any]] = []

    def noting(*what: Any) -> Any:
        rows = fetch_together(*what)
        copies.append(ref(rows))
        return rows

    def body() -> None:
        g = dist.DistGraph(NAME, part_config=oracle(3))
        random_walk(g, [1], length=1, prob="weight")
        assert len(copies) == 1 and copies[0]() is None

    monkeypatch.setattr(turned, "fetch_together", noting)
    alone(body)


class Walker(BlockSampler):
    """Samples the nodes that walks of a few steps reach."""

    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        traces, _ = random_walk(g, seed_nodes, length=2)
        return torch.unique(traces[traces >= 0]), seed_nodes, g.sample_blocks(seed_nodes, [2])[2]


def test_a_sampler_of_walks_in_a_loader(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    g.prepare_walks()
    loader = dist.DistNodeDataLoader(g, dist.node_split(np.ones(NUM_NODES)), Walker(), batch_size=9, seed=1)
    epochs = [[inputs.tolist() for inputs, _, _ in loader] for _ in range(2)]
    loader.set_epoch(0)
    again = [inputs.tolist() for inputs, _, _ in loader]
    on_all(job.trainers, epochs[0] == again and epochs[0] != epochs[1])
    loader.close()


def test_another_thread_is_told_to_prepare(oracle) -> None:
    from layouts import alone

    def body() -> list[str]:
        g = dist.DistGraph(NAME, part_config=oracle(3))
        said = []

        def walk() -> None:
            try:
                random_walk(g, [1], length=1)
            except InvalidArgumentError as error:
                said.append(str(error))

        thread = threading.Thread(target=walk)
        thread.start()
        thread.join()
        return said

    assert "call g.prepare_walks()" in alone(body)[0]


def test_out_edges_that_do_not_fit_are_named(oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    from layouts import alone

    def body() -> None:
        g = dist.DistGraph(NAME, part_config=oracle(3))
        with monkeypatch.context() as full:
            full.setattr(shm_check, "unheld_on_node", lambda: (0, 1 << 20))
            full.setattr(segments, "_SMALL", 0)  # nor is there room in the memory of other arrays
            full.setattr(segments, "_PART", 1 << 40)
            with pytest.raises(SharedMemoryError, match="not enough memory for the out-edges of relation .*_E"):
                random_walk(g, [1], length=1)
        assert random_walk(g, [1], length=1)[0].shape == (1, 2)

    alone(body)
