"""mpigraph: MPI-native distributed GNN training with DGL's distributed API.

Importing this package does little: names are looked up on first use, so that commands without torch never load it. The
import sets a variable that Open MPI reads when it starts. In a process that a launcher started, it makes uncaught
errors end the job; in a process alone, it adds the remedy to torch's errors that first scripts meet.

``__init__.pyi`` lists the public names.
"""

import lazy_loader as _lazy_loader

from mpigraph import config as _config, namespaces as _namespaces

__version__ = "0.1.0"

_load, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)

_config.disable_fast_boxes()
if _config.launch() is not None:
    from mpigraph.mpi import abort as _abort

    _abort.guard_launched()
else:
    from mpigraph import remedies as _remedies

    _remedies.show_remedies()


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise _namespaces.missing(__name__, name)
    return _load(name)
