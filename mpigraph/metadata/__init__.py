"""A graph as pure data: types and ownership. numpy only."""
