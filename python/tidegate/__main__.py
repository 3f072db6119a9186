"""``python -m tidegate`` is the command ``tidegate``."""

import sys

from tidegate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
