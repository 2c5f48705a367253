"""`python -m autoshard` is `autoshard`: the beginning of both."""

import sys


def main() -> int:
    """The exit code of the command line; 130 also for Ctrl-C while what that needs is imported."""
    try:
        from autoshard.cli import main as command_line
    except KeyboardInterrupt:
        return 130
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
