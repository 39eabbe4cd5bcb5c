"""``docs`` writes the reference of all public names, by pdoc, from their docstrings."""

import re
from inspect import formatannotation
from pathlib import Path
from typing import Any

from mpigraph.cli.grammar import Docs
from mpigraph.cli.main import put
from mpigraph.errors import InvalidArgumentError

_ROLE = re.compile(r":\w+:`[~.]*")


def docs(options: Docs) -> int:
    """Write the pages into a folder. Raises InvalidArgumentError if pdoc is not installed."""
    try:
        import pdoc
        from jinja2 import pass_context
    except ImportError:
        raise InvalidArgumentError("pdoc writes the reference: pip install pdoc") from None
    from mpigraph.graphs.fields import TensorLike

    known = pdoc.render.env.filters
    long = formatannotation(TensorLike).removeprefix("Union[").removesuffix("]")

    @pass_context
    def without_roles(context: Any, text: str) -> Any:
        return known["to_markdown"](context, _ROLE.sub("`", text))

    def short(annotation: Any) -> Any:
        text = formatannotation(annotation)
        return type(text.replace(long, "TensorLike"), (), {"__module__": "builtins"})  # which is printed by its name

    def in_short(signature: Any, colon: bool) -> Any:
        each = [of.replace(annotation=short(of.annotation)) for of in signature.parameters.values()]
        return known["format_signature"](signature.replace(parameters=each), colon)

    env = pdoc.render.env
    env.filters = known | {"to_markdown": without_roles, "format_signature": in_short}
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc("mpigraph", "mpigraph.errors", output_directory=Path(options.directory))
    env.filters = known
    put(Path(options.directory) / "index.html")
    return 0
