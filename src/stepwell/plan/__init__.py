"""Plans: what a view computes and how it is maintained. Pure: no Spark, no input or output."""
