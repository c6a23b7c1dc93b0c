"""Sources and sinks: one module per external system."""
