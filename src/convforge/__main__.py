"""``python -m convforge`` is the ``convforge`` command."""

from convforge.cli import main

main()
