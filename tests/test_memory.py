"""What the system tells of this process and its node."""

from pathlib import Path

import pytest

from mpigraph.memory import as_bytes, process_figures


def test_sizes() -> None:
    sizes = {"7": 7, "7B": 7, "1KB": 1000, "2MiB": 2 << 20, "10G": 10 << 30, "10 GB": 10**10, "1.5TiB": 3 << 39}
    assert {text: as_bytes(text) for text in sizes} == sizes
    for text in ("", "G", "-1G", "10g", "1e3", "5iB", "1,5G"):
        with pytest.raises(ValueError, match="expected a size such as"):
            as_bytes(text)


def test_figures_of_this_process() -> None:
    before = process_figures()
    assert sum(range(3_000_000)) > 0
    after = process_figures()
    assert after["cpu_seconds"] > before["cpu_seconds"]


def test_figures_that_the_kernel_tells(tmp_path: Path) -> None:
    for path, text in {
        "self/task/1/schedstat": "5 2000000000 7",
        "self/task/2/schedstat": "5 1000000000 7",
        "pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=3500000\nfull avg10=0.00 total=9\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    figures = process_figures(str(tmp_path))
    assert (figures["run_delay_seconds"], figures["memory_pressure_seconds"]) == (3.0, 3.5)
    unknown = {name for name, value in process_figures(str(tmp_path / "none")).items() if value is None}
    assert unknown == {"run_delay_seconds", "memory_pressure_seconds"}
