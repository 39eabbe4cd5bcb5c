"""The bytes between hosts in a report are those that the hosts' network interfaces count."""

import json
from pathlib import Path

import namespaces
import numpy as np
import pytest
from jobs import clean_environment, generated, needs, run_job, warm_python

from mpigraph.reports.summary import read

pytestmark = needs("hosts", namespaces.missing())
HEADERS = 14 + 20 + 32  # bytes of a frame's Ethernet, IP and TCP headers; the last with time stamps
SCRIPT = """
import json, sys, time
import torch
import mpigraph as mg
folder, config = sys.argv[1:]
mg.distributed.initialize(num_servers=0)
g = mg.distributed.DistGraph("S", part_config=config)
sampler = mg.dataloading.NeighborSampler([10])
loader = mg.distributed.DistNodeDataLoader(
    g, torch.arange(g.num_nodes())[g.rank() :: 3], sampler, batch_size=500, features=["feat"], cache=None
)
def sent():
    g.barrier()
    time.sleep(0.3)
    for line in open("/proc/net/dev"):
        name, _, counts = line.partition(":")
        if name.strip() == "mpig":
            return [int(counts.split()[i]) for i in (8, 9)]
with mg.report(folder):
    before = sent()
    for _ in range(2):
        for batch in loader:
            pass
    after = sent()
json.dump([b - a for a, b in zip(before, after)], open(f"{folder}-{g.rank()}.json", "w"))
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = "--nodes 12000 --edges 120000 --feat-dim 256 --classes 4"
    return generated(tmp_path_factory.mktemp("graph"), sizes, "--parts 3 --method random")


@pytest.mark.parametrize("transport", ["packed", "rma"])
def test_bytes_between_hosts_are_those_of_the_interfaces(config: Path, tmp_path: Path, transport: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    env = clean_environment() | {"MPIGRAPH_TRANSPORT": transport, "MPIGRAPH_TIMEOUT": "120"}
    with namespaces.Hosts(3, shm="256m") as hosts:
        words = [*hosts.mpiexec(1), *warm_python(), tmp_path / "script.py", tmp_path / "report", config]
        done = run_job(words, env)
    assert done.status == 0, done.output
    counted = np.zeros((3, 3))
    for rank in read(tmp_path / "report").ranks:
        for to in rank.to_hosts:
            if transport == "packed":
                counted[rank.rank, to.host_rank] += to.bytes_sent
            else:  # the owner does not see what is read from its memory
                counted[to.host_rank, rank.rank] += to.bytes_received
    frames = np.array([json.loads((tmp_path / f"report-{rank}.json").read_text()) for rank in range(3)])
    payload = frames[:, 0] - HEADERS * frames[:, 1]
    assert payload.min() > 10e6
    assert counted.sum(axis=1) == pytest.approx(payload, rel=0.02), (counted, frames)
