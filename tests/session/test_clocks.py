"""Comparing the clocks of nodes."""

import numpy as np
import pytest
from layouts import on_all
from mpi4py import MPI

from mpigraph.session import reporting
from mpigraph.session.reporting import Ahead, Drift, compare_clocks


@pytest.mark.parametrize("comm", [2, 4], indirect=True)
def test_a_clock_that_is_ahead_is_found_within_the_error_that_is_said(comm: MPI.Intracomm, monkeypatch) -> None:
    """The ranks share a clock here, so how far it is ahead is known."""
    clock = reporting.clock
    monkeypatch.setattr(reporting, "clock", lambda: clock() + 1e3 * comm.rank)
    others = [rank for rank in range(comm.size) if rank != 1]
    begin = clock()
    found = compare_clocks(comm, 1, others)
    end = clock()
    on_all(comm, len(found) == (len(others) if comm.rank == 1 else 0))
    right = [
        abs(ahead.seconds - 1e3 * (rank - 1)) <= ahead.error <= (end - begin) / 2 and begin <= ahead.at - 1e3 <= end
        for rank, ahead in zip(others, found, strict=False)
    ]
    on_all(comm, all(right), repr(found))


def test_drift_between_two_comparisons() -> None:
    """A clock that is 50 s ahead, and runs faster by one part in a thousand."""
    drift = Drift(Ahead(100.0, 50.0, 1e-5), Ahead(1100.0, 51.0, 2e-5))
    times = np.linspace(100, 1100, 11)
    for time in times.tolist():
        theirs = time + 50 + (time - 100) / 1000
        assert drift.own_time(theirs) == pytest.approx(time, abs=1e-9)
    assert drift.error == 2e-5
    assert Drift(Ahead(7.0, 2.0, 1e-5), Ahead(7.0, 2.0, 1e-5)).own_time(10.0) == 8.0  # no time has passed
    assert Drift().own_time(10.0) == 10.0  # one's own clock
