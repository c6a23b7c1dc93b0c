"""The state of one relation: an LSM tree of weighted rows, its run files and its indexes."""
