"""Spans as torch's profiler shows them."""

from torch.autograd import profiler

from mpigraph.trace import show_spans


def show_spans_to_profiler() -> None:
    """Show spans as ``record_function`` while ``torch.profiler`` is on: by default those of the thread it is on in."""
    if hasattr(profiler, "_is_profiler_enabled"):  # not in older torch
        show_spans(profiler, lambda name: profiler.record_function(f"mpigraph.{name}"))
