"""Run the command line: `python -m stepwell` is the same as `stepwell`."""

from stepwell.cli.main import main

main()
