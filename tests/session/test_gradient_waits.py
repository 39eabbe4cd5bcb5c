"""The wait for other trainers' gradients is a span, although torch's C++ code makes it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jobs import run_script

from mpigraph.session.torch_waits import _Waits
from mpigraph.trace import met, process, span

SECONDS, STEPS = 0.3, 5
SCRIPT = f"""
import mpigraph as mg
from mpigraph.trace import met
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = mg.nn.SAGEConv(3, 2, "mean")
    def forward(self, block, rows):
        return {{"scores": [self.layer(block, rows)], "more": 1}}
backend = os.environ["BACKEND"]
torch.distributed.init_process_group(backend, init_method="mpi4py://" if backend == "mpi4py" else None)
model = torch.nn.parallel.DistributedDataParallel(Model())
loader = dist.DistNodeDataLoader(g, torch.arange({STEPS}), NeighborSampler([3]), batch_size=1, features=["feat"])
before = met()
for _, _, blocks in loader:
    if rank == 1:
        time.sleep({SECONDS})
    model(blocks[0], blocks[0].srcdata["feat"])["scores"][0].sum().backward()
print(f"{{rank}} waited {{(met() - before) / 1e9}}\\n", end="", flush=True)
"""


@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi4py", marks=pytest.mark.slow)])
def test_waits_for_gradients_are_spans(oracle: Callable[[int], str], tmp_path: Path, backend: str) -> None:
    status, output, _ = run_script(tmp_path, oracle(2), SCRIPT, ranks=2, servers=0, BACKEND=backend)
    assert status == 0, output
    waited = {int(line.split()[0]): float(line.split()[2]) for line in output.splitlines() if " waited " in line}
    assert waited[0] >= 0.4 * SECONDS * STEPS, output
    assert waited[1] < 0.5 * waited[0], output


def test_a_pass_that_fails_as_it_waits_leaves_no_open_span() -> None:
    weight, waits = torch.ones(3, requires_grad=True), _Waits()
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def step(at_wait: Callable[[], None]) -> None:
        outputs = weight * 2
        waits(None, None, [outputs, torch.ones(3)])
        outputs.register_hook(lambda _: queue(at_wait))  # as DistributedDataParallel does
        outputs.sum().backward()

    def fail() -> None:
        raise KeyError("a trainer has left")

    def open_spans() -> list[span]:
        return [thread.inner for thread in process.threads() if thread.inner is not None]

    others, before, begin = open_spans(), met(), time.perf_counter()
    step(lambda: time.sleep(0.01))
    with pytest.raises(KeyError):
        step(fail)
    assert process.threads() and open_spans() == others
    time.sleep(0.1)
    step(lambda: time.sleep(0.01))
    waited, took = (met() - before) / 1e9, time.perf_counter() - begin
    assert 0.02 <= waited <= took - 0.1
