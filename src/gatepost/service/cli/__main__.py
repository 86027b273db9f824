"""`python -m gatepost.service.cli`: the same as `gatepost`, for where the script is not on the path."""

from gatepost.service.cli import main

main()
