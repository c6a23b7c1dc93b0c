"""The local backend: evaluates plans in this process on Arrow, exactly as Spark would."""
