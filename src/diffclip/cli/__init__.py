"""The command line. Nothing here is slow to import, so that Ctrl-C in the first moment gets its line too."""

import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line, `diffclip.cli.main.main`."""
    try:
        from diffclip.cli.main import main
    except KeyboardInterrupt:
        print("diffclip: interrupted", file=sys.stderr)
        sys.exit(130)
    main()
