"""CPU time of a reader of remote rows by one-sided ``Get``: 15,000 rows of 400 bytes; see ``rows/rma.py``.

    mpiexec -n 1 python tests/perf/one_sided.py      # rows of a window of this rank itself
    mpiexec -n 4 python tests/perf/one_sided.py      # of three other ranks

Prints milliseconds of the thread that reads, the least of 50 reads: ``own`` without MPI's Get and Flush, which copy the
bytes where no network does it, and ``with MPI``. Distinct rows come as minibatches fetch them, others as users index.
"""

from time import thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI

from mpigraph.kernels.row_ops import move_rows
from mpigraph.rows.rma import _Get
from mpigraph.rows.segments import RowPool
from mpigraph.rows.transport import RemoteRows

ROWS, ROW_BYTES, HELD, TIMES = 15_000, 400, 200_000, 50


class Timed:
    """A window that notes the time inside MPI."""

    def __init__(self, win: MPI.Win) -> None:
        self._win = win
        self.inside = 0.0

    def _call(self, name: str, *args: Any, **kwargs: Any) -> None:
        begin = thread_time()
        getattr(self._win, name)(*args, **kwargs)
        self.inside += thread_time() - begin

    def Get(self, *args: Any, **kwargs: Any) -> None:
        self._call("Get", *args, **kwargs)

    def Flush(self, rank: int) -> None:
        self._call("Flush", rank)


def main() -> None:
    comm = MPI.COMM_WORLD
    words = np.zeros((HELD, ROW_BYTES // 8), np.uint64)
    words[:] = np.arange(HELD, dtype=np.uint64)[:, None] + np.uint64(HELD * comm.rank)
    win = MPI.Win.Create(words, 1, comm=comm)
    win.Lock_all(MPI.MODE_NOCHECK)
    comm.Barrier()
    targets = [rank for rank in range(comm.size) if rank != 0] or [0]
    if comm.rank == 0:
        timed, pool = Timed(win), RowPool()
        row = MPI.BYTE.Create_contiguous(ROW_BYTES).Commit()
        window: Any = SimpleNamespace(win=timed, begin=0, row=row, row_bytes=ROW_BYTES)
        random = np.random.default_rng(0)
        out = np.zeros((ROWS, ROW_BYTES // 8), np.uint64)
        for distinct in (True, False):
            best = [np.inf, np.inf]
            for _ in range(TIMES):
                rows = random.choice(HELD, ROWS, replace=not distinct)
                places = np.arange(ROWS) if distinct else random.permutation(ROWS)
                shares = zip(
                    targets, np.array_split(rows, len(targets)), np.array_split(places, len(targets)), strict=True
                )
                remote = [RemoteRows(rank, share, np.sort(at)) for rank, share, at in shares]
                timed.inside, begin = 0.0, thread_time()
                asked_once = [(asked, [], []) if distinct else asked.once(pool) for asked in remote]
                gets = [_Get(window, asked, out, pool) for asked, _, _ in asked_once]
                for get in gets:
                    get.finish()
                for _, repeats, equal in asked_once:
                    if len(repeats):
                        move_rows(out, equal, 0, out, repeats)
                taken = thread_time() - begin
                best = [min(best[0], taken - timed.inside), min(best[1], taken)]
                for asked in remote:
                    assert (out[asked.positions, 0] == asked.rows + HELD * asked.rank).all()
            print(
                f"{'distinct rows, side by side' if distinct else 'any rows and places':28} {len(targets)} target(s): "
                f"own {best[0] * 1e3:.2f} ms, with MPI {best[1] * 1e3:.2f} ms"
            )
        row.Free()
    comm.Barrier()
    win.Unlock_all()
    win.Free()


if __name__ == "__main__":
    main()
