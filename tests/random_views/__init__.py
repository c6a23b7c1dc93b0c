"""Random tables, views and changes, for comparing what an engine keeps with what Spark computes.

    case_of(seed)     two or three small tables, some views of all the operators Stepwell keeps
                      incrementally, and batches of changes; the same for the same seed

Values come from small domains, so that keys collide, groups vanish and matches come and go.

Every view has exactly one right answer, and none fails halfway:

- An order that decides about rows (LIMIT, ROW_NUMBER, frames of ROWS) is one over all columns that
  are selected, so rows that tie are equal.
- Stored floating point numbers are multiples of 1/4, whose sums are exact in any order. A column
  whose value does depend on the order of addition has the kind NOISY: it may be selected, but
  nothing is ever decided by it.
- Nothing overflows, divides by zero, or casts what cannot be cast. A scalar subquery is an
  aggregate, so it has one row.
"""
