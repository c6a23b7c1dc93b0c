"""Where rows come from and where views go: one file per system, source and sink side by side."""
