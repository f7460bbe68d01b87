"""`python -m superfluid.cli` is `superfluid`, for an environment whose scripts are not on the path."""

from superfluid.cli.main import main

main()
