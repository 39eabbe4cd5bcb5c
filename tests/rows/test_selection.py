"""The rates of transports are measured once for some nodes. Choosing among those that work: ``test_transport``."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from layouts import on_all
from mpi4py import MPI
from numba import config

from mpigraph.kernels import cache
from mpigraph.rows import selection


@pytest.mark.parametrize("comm", [1, 2], indirect=True)
def test_nodes_that_were_measured_are_known(comm: MPI.Intracomm, tmp_path: Path, monkeypatch) -> None:
    """Rank 0's note counts on all ranks; one that is old, damaged or of other nodes does not."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / str(comm.rank)))
    measured: list[dict[str, float]] = []

    def measure(service: object) -> dict[str, float]:
        measured.append({"rma": 1e9 + comm.rank, "packed": 2e9})
        comm.Barrier()
        return measured[-1]

    monkeypatch.setattr(selection, "_measure", measure)
    world = SimpleNamespace(comm=comm, node=MPI.COMM_SELF, rank=comm.rank, config=SimpleNamespace(ranks_per_node=0))
    service = SimpleNamespace(world=world, transports=[SimpleNamespace(name=name) for name in ("rma", "packed")])

    def measures() -> bool:
        measured.clear()
        rates = selection._rates(service)
        on_all(comm, rates["packed"] == 2e9 and (measured or rates["rma"] == 1e9), str(rates))
        return bool(measured)

    def notes() -> list[Path]:
        return list(cache._folder().glob("transports-*.txt"))

    assert measures() and not measures()
    on_all(comm, len(notes()) == (comm.rank == 0), "rank 0 alone notes")
    damaged = ["", "{}", "[1]", "[" * 100_000, f"[1, 1{'0' * 400}, 1]"]
    for text in (*damaged, json.dumps([0.0, 1.0, 2.0]), json.dumps([2e11, 1.0, 2.0])):
        for note in notes():
            note.write_text(text)
        assert measures() and not measures()
    service.transports.reverse()
    assert measures() and not measures()
    world.config.ranks_per_node = 2
    assert measures() and measures()
