"""`python -m diffclip.integrations.open_clip`."""

import sys

from diffclip.errors import DiffCLIPError
from diffclip.integrations.open_clip import run_command

if __name__ == "__main__":
    try:
        sys.exit(run_command(sys.argv[1:]))
    except DiffCLIPError as error:
        print(f"diffclip: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
