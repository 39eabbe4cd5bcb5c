"""Code that ``torch.compile`` must not look into.

Where compiled code, or DDP around it, calls a process group from C++, dynamo compiles the group's code, too: MPI's
objects then end in an error of its own. ``torch.compiler.disable`` would import all of dynamo, which takes seconds.
"""

from typing import TypeVar

__all__ = ["untraced"]

Class = TypeVar("Class", bound=type)


def untraced(cls: Class) -> Class:
    """Have dynamo run the methods of a class, and all that they call, as they are."""
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        return cls
    if hasattr(eval_frame, "set_code_exec_strategy"):  # older torch has none
        skip = eval_frame._FrameAction.SKIP
        for member in vars(cls).values():
            function = getattr(member, "fget", member)
            if hasattr(function, "__code__"):
                eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return cls
