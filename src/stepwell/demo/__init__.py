"""Demonstrations with real processes whose outcome is checked against the guarantees."""
