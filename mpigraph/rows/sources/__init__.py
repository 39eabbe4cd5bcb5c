"""Sources of rows that a rank reads without asking another one."""
