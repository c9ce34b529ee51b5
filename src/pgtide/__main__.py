"""``python -m pgtide``: the ``pgtide`` command, where its script is not on the path."""

from pgtide.cli import main

if __name__ == "__main__":
    main()
