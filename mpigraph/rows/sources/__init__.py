"""Sources of rows: where the rows lie that a rank reads without asking another one."""
