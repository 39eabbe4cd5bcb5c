"""The forecast: edges go to temporary files where memory does not hold them, and nodes must fit."""

import pytest

from mpigraph.errors import InvalidArgumentError
from mpigraph.partition.assign import check_memory, forecast
from mpigraph.partition.assigning import Workload

GIB = 1 << 30


def test_edges_go_to_temporary_files_where_memory_does_not_hold_them() -> None:
    work = Workload(10**7, 5 * 10**8, 4, "multilevel")
    in_memory, mapped = forecast(work, 2), forecast(work, 2, mapping=True)
    assert in_memory.memory > mapped.memory and in_memory.scratch < mapped.scratch
    assert check_memory(work, 2, in_memory.memory) == in_memory
    assert check_memory(work, 2, in_memory.memory - 1) == mapped
    assert check_memory(work, 2, mapped.memory) == mapped
    assert mapped.memory == forecast(work._replace(num_edges=10**9), 2, mapping=True).memory  # which nodes alone decide


@pytest.mark.parametrize("method", ["metis", "multilevel"])
def test_what_cannot_work_names_the_ranks_that_would(method: str) -> None:
    work = Workload(10**8, 2 * 10**9, 4, method)
    with pytest.raises(InvalidArgumentError, match="on 1 rank.* has 4.0 GiB: use --method multilevel on") as caught:
        check_memory(work, 1, 4 * GIB)
    ranks = int(str(caught.value).split("--method multilevel on ")[1].split()[0])
    multilevel = work._replace(method="multilevel")
    assert check_memory(multilevel, ranks, 4 * GIB).memory <= 4 * GIB
    with pytest.raises(InvalidArgumentError, match=f"{ranks} ranks"):
        check_memory(multilevel, ranks // 2, 4 * GIB)
    with pytest.raises(InvalidArgumentError, match="no number of ranks suffices"):
        check_memory(work, 1, GIB // 8)
