"""The SQL front end: from the text of statements and queries to plans. Pure."""
