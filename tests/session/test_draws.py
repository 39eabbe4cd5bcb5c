"""Nothing is drawn twice: two calls differ, in whatever process, and seeds repeat them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jobs import run_script
from layouts import SharedJob, on_all
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler, as_edge_prediction_sampler
from mpigraph.dataloading.negative_sampler import Uniform
from mpigraph.graphs.fields import EID, NID

NODES = torch.arange(0, NUM_NODES, 2)
PAIRS = as_edge_prediction_sampler(NeighborSampler([4]), negative_sampler=Uniform(8))
CALLS: dict[str, Callable[[dist.DistGraph], torch.Tensor]] = {
    "neighbours": lambda g: g.sample_neighbors(NODES, 2).edata[EID],
    "blocks": lambda g: NeighborSampler([2]).sample(g, NODES)[2][0].edata[EID],
    "negatives": lambda g: Uniform(8)(g, torch.arange(20))[1],
    "pairs": lambda g: PAIRS.sample(g, torch.arange(20))[2].ndata[NID],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_differ(job: SharedJob, g: dist.DistGraph, call: Callable[[dist.DistGraph], torch.Tensor]) -> None:
    drawn = {str(call(g).tolist()) for _ in range(5)}
    on_all(job.trainers, len(drawn) == 5, f"{len(drawn)}")


def test_a_seed_repeats_the_draws(job: SharedJob, g: dist.DistGraph) -> None:
    drawn = [str(g.sample_neighbors(NODES, 2, seed=seed).edata[EID].tolist()) for seed in (1, 2, 1, 2)]
    on_all(job.trainers, drawn[:2] == drawn[2:] and drawn[0] != drawn[1])


BODY = """
from torch.utils.data import DataLoader

class Draws(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, item):
        return g.sample_neighbors(list(range(60, 90)), 3).edata["_ID"].tolist()

def of_a_child():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, (str(Draws()[0]) + ";").encode())
        os._exit(0)
    os.wait()
    return os.read(reading, 1 << 16).decode()

workers = DataLoader(Draws(), num_workers=2, batch_size=None)
found = [str(draw) + ";" for epoch in range(3) for draw in workers]
found += [of_a_child() for _ in range(2)] + [str(Draws()[0]) + ";"]
print(len(found), len(set(found)), flush=True)
again = []
for _ in range(2):
    torch.manual_seed(7)
    again.append([str(draw) for draw in workers])
print("again", again[0] == again[1], flush=True)
"""


@pytest.mark.slow
def test_forks_do_not_repeat_draws(tmp_path: Path, oracle) -> None:
    status, output, _ = run_script(tmp_path, oracle(2), BODY, 1, 0)
    assert status == 0, output
    assert "27 27\n" in output and "again True\n" in output, output
