"""From SQL text to a maintenance program: pure, without Spark, without input or output."""
