"""``python -m frpt``: the same as the command `frpt`."""

from frpt.cli.entry import main

if __name__ == "__main__":
    main()
