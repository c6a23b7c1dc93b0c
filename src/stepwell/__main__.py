"""`python -m stepwell` is `stepwell`."""

from stepwell.cli.main import main

main()
