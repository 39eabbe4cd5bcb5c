"""Options of DGL's and PyTorch's loaders, of every version, that ours lack.

Some change nothing here; the others raise an error that says what to do instead.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any

from mpigraph.errors import InvalidArgumentError

# They are about processes that sample, copies to a GPU, and how ids are shared: a trainer has threads, a stream of its
# own, and its own ids.
_CHANGE_NOTHING = frozenset(
    """
    async_load cpu_worker_affinity_cores ddp_seed gb_padding gpu_cache in_order multiprocessing_context num_workers
    persistent_workers pin_memory_device pin_prefetcher prefetch_factor timeout use_alternate_streams
    use_cpu_worker_affinity use_ddp use_prefetch_thread use_uva worker_init_fn
    """.split()
)
_INSTEAD = {
    "cache_policy": "a full cache keeps the rows that are read soonest; cache= is its size",
    "g_sampling": "neighbours are sampled from the graph of the edges: leave it out; what to leave out of the graph is "
    "exclude=, a fanout of 0 for a relation, or a sampler of your own",
    "load_input": "name the features: features=[...] gathers them for the input nodes",
    "load_output": "name the features: labels=[...] gathers them for the output nodes",
    "collate_fn": "the sampler makes the minibatches: change them in the loop, or use DistDataLoader(ids, batch_size, "
    "collate_fn=...)",
    "generator": "order and draws depend on seed=",
    "sampler": "ids go in their order, or with shuffle=True in another one in each epoch; the sampler of blocks is "
    "graph_sampler",
    "batch_sampler": "ids go in batches of batch_size; other batches are a loop over sampler.sample(g, ids)",
}


def check_foreign(loader: type, options: Mapping[str, object]) -> None:
    """Check the options of a loader that are not its own, by name; None counts as absent.

    Raises:
        InvalidArgumentError: one would change something, or is unknown; says what to do.
    """
    for name, value in options.items():
        if name in _CHANGE_NOTHING or (value is None and name in _INSTEAD):
            continue
        if name in _INSTEAD:
            raise InvalidArgumentError(f"{loader.__name__} takes no {name}: {_INSTEAD[name]}")
        close = get_close_matches(name, signature(loader.__init__).parameters, 1)  # type: ignore[misc]
        raise InvalidArgumentError(
            f"unknown argument {name!r} of {loader.__name__}" + (f" (do you mean {close[0]}?)" if close else "")
        )


def without_processes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without those that change nothing on a :class:`DistGraph`."""
    return {name: value for name, value in options.items() if name not in _CHANGE_NOTHING}
