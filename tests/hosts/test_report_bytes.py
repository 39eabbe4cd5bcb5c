"""The bytes between hosts in a report are those that the hosts' network interfaces count."""

import json
import subprocess
import sys
from pathlib import Path

import namespaces
import numpy as np
import pytest
from jobs import clean_environment, needs, run

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


@pytest.mark.parametrize("transport", ["packed", "rma"])
def test_bytes_between_hosts_are_those_of_the_interfaces(tmp_path: Path, transport: str) -> None:
    command = [sys.executable, "-m", "mpigraph"]
    sizes = "--nodes 12000 --edges 120000 --feat-dim 256 --classes 4".split()
    run(*command, "generate", *sizes, "-o", tmp_path / "data")
    run(*command, "partition", tmp_path / "data", *"--parts 3 --method random --name S -o".split(), tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = clean_environment() | {"MPIGRAPH_TRANSPORT": transport, "MPIGRAPH_TIMEOUT": "60"}
    with namespaces.Hosts(3, shm="256m") as hosts:
        words = [*hosts.mpiexec(1), sys.executable, tmp_path / "script.py", tmp_path / "report", tmp_path / "S.json"]
        done = subprocess.run(list(map(str, words)), env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
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
