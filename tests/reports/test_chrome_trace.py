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
from mpigraph.reports.summary import events_of, write_trace

SUMMARY = made(0, Setup(trainers=2, nodes=2, steps=3))
BEGIN = 10**15  # ns on the clock of a machine that was started days ago


def checked(path: Path) -> list[dict[str, Any]]:
    """The events of a file: known phases, names of processes and threads, spans in order and nested."""
    with gzip.open(path, "rt") as file:
        content = json.load(file, parse_float=Decimal)
    events = content["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] in ("thread_name", "process_name")}
    open_spans: dict[Any, list[tuple[Decimal, Decimal]]] = {}
    latest: dict[Any, Decimal] = {}
    for event in events:
        assert event["ph"] in "MX", event
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
    """Times are exact, also days after the begin; the other rank's clock runs at half the speed."""
    rng = np.random.default_rng(0)
    begins = BEGIN + rng.integers(-(10**9), 10**10, 300)
    spans = [("fetch", b, b + int(rng.exponential(1e9)), 7, "host 3") for b in begins.tolist()]
    spans += [("step", BEGIN + 2, BEGIN + 3, 0, ""), ("forward", BEGIN + 2, BEGIN + 3, 0, "")]
    spans += [("own", BEGIN + 3, BEGIN + 3, 0, "")]
    late = [("sample", BEGIN + 10**15 + 1, BEGIN + 10**15 + 2, 1, "")]
    parts = [
        events_of(0, [("MainThread", [("plan", BEGIN, BEGIN + 1000, 0, "")])], BEGIN, 2.0),
        events_of(1, [("MainThread", spans), ("mpigraph-prefetch", late)], BEGIN, 1.0),
    ]
    write_trace(tmp_path, SUMMARY, parts)
    events = checked(tmp_path / "trace.json.gz")
    of_name = {event["name"]: event for event in events}
    assert sum(event["ph"] == "X" for event in events) == 305
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["trainer 0 on n0", "trainer 1 on n1"]
    tiny = of_name["sample"]
    assert (tiny["ts"], tiny["dur"]) == (Decimal("1000000000000.001"), Decimal("0.001"))
    assert tiny["args"] == {"minibatch": 1} and of_name["fetch"]["args"] == {"minibatch": 7, "detail": "host 3"}
    assert (of_name["plan"]["ts"], of_name["plan"]["dur"]) == (0, 2)


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    name = '"},\n\u2028\ud800<script>'
    write_trace(tmp_path, SUMMARY, [events_of(0, [(name, [(name, 0, 1, 0, name)])], 0, 1.0)])
    span = next(event for event in checked(tmp_path / "trace.json.gz") if event["ph"] == "X")
    assert span["name"] == name and span["args"] == {"detail": name}


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_trace(tmp_path, SUMMARY, ["no bytes"])  # type: ignore[list-item]
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"trace.json.gz cannot be written"):
        write_trace(tmp_path / "file", SUMMARY, [])
