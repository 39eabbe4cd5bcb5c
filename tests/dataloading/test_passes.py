"""A loader that is made anew in each epoch repeats the first one: a job is warned of it, once."""

import pytest
import torch
from layouts import SharedJob, on_all

import mpigraph.distributed as dist
from mpigraph.dataloading import MultiLayerFullNeighborSampler, NeighborSampler
from mpigraph.dataloading.negative_sampler import Uniform

SAYS = "was made before, and repeats its order and draws"
OPTIONS = {"batch_size": 8, "shuffle": True}


@pytest.fixture
def loader(job: SharedJob, oracle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Makes loaders in a job that has made none; and counts warnings on the first trainer."""
    g = job.open(oracle(2))
    monkeypatch.setattr(g.session, "loaders_begun", set())

    def make(sampler: object = None, seeds: int = 20, make: type = dist.DistNodeDataLoader, **options: object):
        return make(g, torch.arange(seeds), sampler or NeighborSampler([2]), **(OPTIONS | options))

    def warned() -> int:
        return caplog.text.count(SAYS)

    def epoch(made: object) -> list[int]:
        return torch.cat([nodes for _, nodes, _ in made]).tolist()

    return make, epoch, warned, int(g.rank() == 0), job.trainers


def test_a_loader_that_is_made_in_each_epoch_is_warned_of_once(loader) -> None:
    make, epoch, warned, expected, comm = loader
    kept = make()
    orders = [epoch(kept) for _ in range(3)]
    assert len(set(map(str, orders))) == 3 and warned() == 0
    assert epoch(make()) == orders[0]  # bits stay
    first = warned()
    epoch(make())
    for _ in range(2):
        epoch(make(batch_size=5))
    on_all(comm, first == warned() == expected, str(first))


SAME = {
    "nothing drawn": [{"sampler": MultiLayerFullNeighborSampler(1), "shuffle": False}] * 3,
    "a seed": [{"seed": 5}] * 3,
    "seed 0": [{"seed": 0}] * 3,
    "other loaders": [{}, {"seeds": 19}, {"batch_size": 9}, {"sampler": NeighborSampler([3])}, {"drop_last": True}],
    "their epoch": [{}] * 3,
}


@pytest.mark.parametrize("name", SAME)
def test_loaders_that_are_told_or_differ_or_draw_nothing_are_not_warned_of(loader, name: str) -> None:
    make, epoch, warned, _, comm = loader
    orders = []
    for number, options in enumerate(SAME[name]):
        made = make(**options)
        if name == "their epoch":
            made.set_epoch(number)
        orders.append(str(epoch(made)))
    on_all(comm, warned() == 0 and (name != "their epoch" or len(set(orders)) == 3))


def test_negatives_are_draws(loader) -> None:
    """Also where neighbours are all, and the order is the same."""
    make, _, warned, expected, comm = loader
    for _ in range(2):
        how = {"make": dist.DistEdgeDataLoader, "seeds": 6, "batch_size": 3, "shuffle": False}
        assert len(list(make(MultiLayerFullNeighborSampler(1), negative_sampler=Uniform(1), **how))) == 2
    on_all(comm, warned() == expected)
