"""Nothing is drawn twice: two calls differ on whatever graph, in whatever process, and seeds repeat them."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jobs import run_script

import mpigraph as mg
from mpigraph.compat import dgl_roles
from mpigraph.dataloading import DataLoader, NeighborSampler, as_edge_prediction_sampler, sample_neighbors
from mpigraph.dataloading.negative_sampler import Uniform
from mpigraph.graphs.fields import EID, NID
from mpigraph.session.context import job_seed

NODES, DEGREE = 40, 20


pytestmark = pytest.mark.usefixtures("unseeded")


def ring() -> mg.HeteroGraph:
    """Each node has edges from those behind it, so that each draw of a few has thousands of outcomes."""
    dst = torch.arange(NODES).repeat_interleave(DEGREE)
    return mg.graph(((dst + torch.arange(1, DEGREE + 1).repeat(NODES)) % NODES, dst), num_nodes=NODES)


G = ring()
CALLS: dict[str, Callable[[], torch.Tensor]] = {
    "in": lambda: sample_neighbors(G, [0, 1], 6).edata[EID],
    "out": lambda: sample_neighbors(G, [0, 1], 6, edge_dir="out").edata[EID],
    "weighted, out": lambda: sample_neighbors(weighted(), [0, 1], 6, edge_dir="out", prob="w").edata[EID],
    "blocks": lambda: NeighborSampler([6]).sample(G, torch.tensor([0, 1]))[2][0].edata[EID],
    "loops added": lambda: sample_neighbors(mg.add_self_loop(G), [0, 1], 6).edata[EID],
    "reversed": lambda: sample_neighbors(mg.reverse(G), [0, 1], 6).edata[EID],
    "edges removed": lambda: sample_neighbors(mg.remove_edges(G, [799]), [0, 1], 6).edata[EID],
    "negatives": lambda: Uniform(8)(ring(), torch.arange(2))[1],
    "pairs": lambda: (
        as_edge_prediction_sampler(NeighborSampler([4]), negative_sampler=Uniform(8))
        .sample(ring(), torch.arange(2))[2]
        .ndata[NID]
    ),
}


def weighted() -> mg.HeteroGraph:
    G.edata["w"] = torch.ones(G.num_edges())
    return G


def repeated(call: Callable[[], torch.Tensor]) -> list[list[int]]:
    return [call().tolist() for _ in range(5)]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_on_graphs_in_memory_differ_and_seeds_repeat_them(call: Callable[[], torch.Tensor]) -> None:
    sequences = []
    for seed in (torch.manual_seed, dgl_roles.seed):
        for value in (1, 2):
            seed(value)
            sequences.append(repeated(call))
            seed(value)
            assert repeated(call) == sequences[-1]
    assert len({str(one) for five in sequences for one in five}) == 20


def test_a_seed_of_the_alias_is_that_of_loaders_in_memory() -> None:
    def order() -> list[int]:
        return torch.cat([nodes for _, nodes, _ in DataLoader(G, torch.arange(40), NeighborSampler([2]), shuffle=True)])

    first = order().tolist()
    dgl_roles.seed(5)
    assert order().tolist() == order().tolist() != first
    dgl_roles.seed(job_seed())
    assert order().tolist() == first


def test_out_edges_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    g, sorts = ring(), []
    argsort = torch.argsort
    monkeypatch.setattr(
        torch, "argsort", lambda *args, **options: sorts.append(len(args[0])) or argsort(*args, **options)
    )
    for number in range(3):
        g.edata["x"] = torch.arange(g.num_edges()) + number  # features are those of the call
        drawn = sample_neighbors(g, [3, 5], 4, edge_dir="out")
        assert drawn.edges()[0].unique().tolist() == [3, 5] and drawn.num_edges() == 8
        assert torch.equal(drawn.edata["x"], drawn.edata[EID] + number)
        assert torch.equal(torch.stack(g.find_edges(drawn.edata[EID])), torch.stack(drawn.edges()))
    assert sorts == [g.num_edges()] * 2


def test_graphs_that_were_sampled_can_be_copied() -> None:
    """As workers of torch's DataLoader that are spawned get one."""
    g = ring()
    first = sample_neighbors(g, [3], 4, seed=1)
    other = copy.deepcopy(g)
    assert torch.equal(sample_neighbors(other, [3], 4, seed=1).edata[EID], first.edata[EID])


BODY = """
import mpigraph as mg
from mpigraph.dataloading import sample_neighbors
from torch.utils.data import DataLoader

eids = torch.arange(g.num_edges())
here = mg.graph(g.find_edges(eids), num_nodes=g.num_nodes())

class Draws(torch.utils.data.Dataset):
    def __init__(self, graph):
        self.graph = graph
    def __len__(self):
        return 8
    def __getitem__(self, item):
        return sample_neighbors(self.graph, list(range(60, 90)), 3).edata["_ID"].tolist()

def of_a_child(graph):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, (str(Draws(graph)[0]) + ";").encode())
        os._exit(0)
    os.wait()
    return os.read(reading, 1 << 16).decode()

for name, graph in (("memory", here), ("distributed", g)):
    workers = DataLoader(Draws(graph), num_workers=2, batch_size=None)
    found = [str(draw) + ";" for epoch in range(3) for draw in workers]
    found += [of_a_child(graph) for _ in range(2)] + [str(Draws(graph)[0]) + ";"]
    print(name, len(found), len(set(found)), flush=True)
    again = []
    for _ in range(2):
        torch.manual_seed(7)
        again.append([str(draw) for draw in workers])
    print(name, "again", again[0] == again[1], flush=True)
"""


@pytest.mark.slow
def test_forks_do_not_repeat_draws(tmp_path: Path, oracle) -> None:
    status, output, _ = run_script(tmp_path, oracle(2), BODY, 1, 0)
    assert status == 0, output
    for name in ("memory", "distributed"):
        assert f"{name} 27 27\n" in output and f"{name} again True\n" in output, output
