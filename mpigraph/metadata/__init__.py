"""A graph without its data: node types and relations, and the owner of each id."""
