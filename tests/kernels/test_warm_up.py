"""Kernels that are compiled before training."""

import re
import sys

import pytest
from jobs import clean_environment, run_job, run_script

COMPILED = """
import importlib, pkgutil
from numba.core.dispatcher import Dispatcher
import mpigraph.kernels

def compiled():
    names = [module.name for module in pkgutil.iter_modules(mpigraph.kernels.__path__)]
    modules = [importlib.import_module(f"mpigraph.kernels.{name}") for name in names]
    kernels = {id(k): k for module in modules for k in vars(module).values() if isinstance(k, Dispatcher)}
    return {(k.py_func.__name__, str(types)) for k in kernels.values() for types in k.signatures}

mpigraph.kernels.warm_up()
warm = compiled()
"""
EPOCH = """
from mpigraph.nn import relu_dropout
sampler = NeighborSampler([2, 3])
loader = dist.DistNodeDataLoader(g, torch.arange(rank, 40, 2), sampler, batch_size=10, shuffle=True, features=["feat"])
for inputs, seeds, blocks in loader:
    relu_dropout(blocks[0].srcdata["feat"].requires_grad_(), 0.5, True).sum().backward()
print(f"of {len(warm)} compiled late: {sorted(compiled() - warm)}", flush=True)
"""


@pytest.mark.parametrize(("ranks", "per_node"), [pytest.param(1, "0", marks=pytest.mark.slow), (2, "1")])
def test_training_compiles_nothing_after_the_warm_up(tmp_path, oracle, ranks: int, per_node: str) -> None:
    options = {"ranks": ranks, "servers": 0, "before": COMPILED, "MPIGRAPH_RANKS_PER_NODE": per_node}
    status, output, _ = run_script(tmp_path, oracle(3), EPOCH, **options)
    assert status == 0, output
    assert len(re.findall(r"of [1-9]\d+ compiled late: \[\]", output)) == ranks, output


@pytest.mark.slow
def test_a_thread_that_calls_kernels_imports_nothing() -> None:
    """After the start of a job, in a process that finds them compiled: a fork beside an import could import nothing."""
    script = """
import sys, threading
import mpigraph.distributed as dist
import mpigraph.kernels
mpigraph.kernels.compile_missing()
dist.initialize(num_servers=0)
before = set(sys.modules)
thread = threading.Thread(target=mpigraph.kernels.warm_up)
thread.start()
thread.join()
print("late", sorted(set(sys.modules) - before))
"""
    done = run_job([sys.executable, "-c", script], clean_environment())
    assert done.status == 0 and "late []" in done.stdout, done.output
