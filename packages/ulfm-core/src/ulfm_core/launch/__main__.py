"""``python -m ulfm_core.launch`` is the command ``ulfmrun``."""

import sys

from ulfm_core.launch.command_line import main

if __name__ == "__main__":
    sys.exit(main())
