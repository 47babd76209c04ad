"""The command line: ``pelton ...`` and ``python -m pelton ...``."""

import signal
import sys

from pelton import _pelton


def main() -> None:
    """Run the command line of this process and end with its exit code."""
    # The command line has its own handling of Ctrl-C; Python's would only leave a note.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_pelton.main(["pelton", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
