"""What there is of a graph without its data: node types and relations, and the owner of each id. numpy only."""
