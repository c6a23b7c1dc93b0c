"""One file of mutants for each part of the package; each defines MUTANTS."""
