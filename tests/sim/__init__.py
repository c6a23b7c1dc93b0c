"""A seeded simulator: the package's own classes, several writers, a collector, readers, faults."""
