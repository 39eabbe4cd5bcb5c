"""Users' namespaces show the API alone; names that are asked of the wrong one."""

from importlib import import_module
from importlib.util import find_spec

import pytest

import mpigraph
import mpigraph.nn.pytorch
from mpigraph import dataloading, distributed, nn
from mpigraph.namespaces import missing

WRONG = [
    (mpigraph, "initialize", "mpigraph.distributed.initialize"),
    (mpigraph, "DistGraph", "mpigraph.distributed.DistGraph"),
    (mpigraph, "NeighborSampler", "mpigraph.dataloading.NeighborSampler"),
    (mpigraph, "SAGEConv", "mpigraph.nn.SAGEConv"),
    (mpigraph, "layerwise", "mpigraph.inference.layerwise"),
    (mpigraph, "async_save", "mpigraph.checkpoint.async_save"),
    (distributed, "NeighborSampler", "mpigraph.dataloading.NeighborSampler"),
    (distributed, "heterograph", "mpigraph.heterograph"),
    (dataloading, "DistGraph", "mpigraph.distributed.DistGraph"),
    (nn, "DistEmbedding", "mpigraph.distributed.DistEmbedding"),
    (mpigraph, "PartitionError", "mpigraph.errors.PartitionError"),
]
NAMESPACES = """
    mpigraph mpigraph.checkpoint mpigraph.convert mpigraph.data mpigraph.dataloading
    mpigraph.dataloading.negative_sampler mpigraph.distributed mpigraph.distributed.nn mpigraph.distributed.optim
    mpigraph.errors mpigraph.function mpigraph.inference mpigraph.nn mpigraph.nn.functional mpigraph.nn.pytorch
""".split()


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_shows_the_api_alone(name: str) -> None:
    names: dict[str, object] = {}
    exec(f"from {name} import *", names)
    del names["__builtins__"]
    assert set(names) == set(import_module(name).__all__) == set(dir(import_module(name)))
    homes = {key: getattr(value, "__module__", getattr(value, "__name__", "mpigraph")) for key, value in names.items()}
    assert [key for key, home in homes.items() if key.startswith("_") or not home.startswith("mpigraph")] == []


@pytest.mark.parametrize(("module", "name", "there"), WRONG, ids=lambda value: getattr(value, "__name__", value))
def test_an_error_names_where_it_is(module, name: str, there: str) -> None:
    with pytest.raises(
        AttributeError, match=f"module '{module.__name__}' has no attribute '{name}'; there is {there}$"
    ):
        getattr(module, name)


def test_names_that_are_nowhere() -> None:
    assert str(missing("mpigraph", "nowhere")) == "module 'mpigraph' has no attribute 'nowhere'"
    assert "there is" not in str(missing("mpigraph", "__wrapped__"))


def test_the_second_name_of_layers_is_a_plain_module() -> None:
    """It shows its layers, and no module has a second name below it, with classes of its own."""
    assert set(nn.__all__) <= set(dir(mpigraph.nn.pytorch))
    with pytest.raises(ModuleNotFoundError, match="__path__"):
        find_spec("mpigraph.nn.pytorch.sageconv")
