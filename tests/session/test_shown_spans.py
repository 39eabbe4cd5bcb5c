"""torch's profiler shows the library's spans."""

import torch
from layouts import Layout, SharedJob, on_layouts
from torch.profiler import ProfilerActivity, profile

from mpigraph.trace import span


@on_layouts([Layout(1, 0, 0)])
def test_the_profiler_shows_spans(job: SharedJob) -> None:
    with span("before"):
        with profile(activities=[ProfilerActivity.CPU]) as seen_by:
            with span("fetch"), span("meet"):
                torch.ones(3) + 1
            left = span("left")
            left.__enter__()
        left.__exit__(None, None, None)
    names = [event.key for event in seen_by.key_averages()]
    assert {"mpigraph.fetch", "mpigraph.meet"} <= set(names) and "mpigraph.before" not in names
    with profile(activities=[ProfilerActivity.CPU]) as seen_by:
        torch.ones(3) + 1
    assert not [event.key for event in seen_by.key_averages() if "mpigraph" in event.key]
