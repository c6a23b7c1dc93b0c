"""Backends that evaluate plans: `local` on Arrow, `spark` on executors, `reference` for tests."""
