"""``python -m spare_planner``, the same as the command ``spare-planner``."""

import sys

from spare_planner.cli import main

sys.exit(main())
