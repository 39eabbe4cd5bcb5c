"""trace.json.gz: well formed, in order, nested."""

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_summaries import Setup, made

from mpigraph.errors import StorageError
from mpigraph.reports.summary import writing_trace

SUMMARY = made(0, Setup(trainers=2, nodes=2, steps=3))


def checked(path: Path) -> list[dict[str, Any]]:
    """The events of a file: known phases, names of processes and threads, spans in order and nested."""
    with gzip.open(path, "rt") as file:
        content = json.load(file, parse_float=Decimal)
    events = content["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] in ("thread_name", "process_name")}
    open_spans: dict[Any, list[tuple[Decimal, Decimal]]] = {}
    latest: dict[Any, Decimal] = {}
    for event in events:
        assert event["ph"] in "MXC", event
        if event["ph"] == "X":
            track = (event["pid"], event["tid"])
            assert track in named and event["dur"] >= 0 and event["ts"] >= latest.get(track, event["ts"])
            latest[track] = event["ts"]
            around = open_spans.setdefault(track, [])
            while around and around[-1][1] <= event["ts"]:
                around.pop()
            end = event["ts"] + event["dur"]
            assert not around or (around[-1][0] <= event["ts"] and end <= around[-1][1]), event
            around.append((event["ts"], end))
    return events


def test_spans_in_any_order_nest_in_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    begins = rng.uniform(-1, 10, 300)
    spans = [("fetch", float(b), float(b + rng.exponential(1)), "host 3", 7) for b in begins]
    spans += [("step", 2.0, 3.0, "", 0), ("forward", 2.0, 3.0, "", 0), ("own", 3.0, 3.0, "", 0)]
    with writing_trace(tmp_path / "trace.json.gz", SUMMARY) as trace:
        trace.thread(1, "MainThread", spans)
        trace.thread(1, "mpigraph-prefetch", [("sample", 1e6 + 1e-9, 1e6 + 2.5e-9, "", 1)])
        trace.thread(0, "MainThread", [])
        trace.counter(1, "cache", [(0.5, 3), (1.5, 4.25)])
    events = checked(tmp_path / "trace.json.gz")
    assert sum(event["ph"] == "X" for event in events) == 304
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [
        "trainer 0 on n0",
        "trainer 1 on n1",
    ]
    tiny = next(event for event in events if event["name"] == "sample")
    assert (tiny["ts"], tiny["dur"]) == (Decimal("1000000000000.001"), Decimal("0.001"))
    assert tiny["args"] == {"minibatch": 1}
    fetch = next(event for event in events if event["name"] == "fetch")
    assert fetch["args"] == {"minibatch": 7, "detail": "host 3"}
    assert [(event["ts"], event["args"]["value"]) for event in events if event["ph"] == "C"] == [
        (500_000, 3),
        (1_500_000, 4.25),
    ]


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    name = '"},\n\u2028\ud800<script>'
    with writing_trace(tmp_path / "trace.json.gz", SUMMARY) as trace:
        trace.thread(0, name, [(name, 0.0, 1.0, name, 0)])
    span = next(event for event in checked(tmp_path / "trace.json.gz") if event["ph"] == "X")
    assert span["name"] == name and span["args"] == {"detail": name}


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), writing_trace(tmp_path / "trace.json.gz", SUMMARY):
        raise KeyError
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"trace.json.gz cannot be written"):
        with writing_trace(tmp_path / "file" / "trace.json.gz", SUMMARY):
            pass
