"""``python -m workload_policy`` is the command ``workload-policy``."""

from workload_policy.cli import main

raise SystemExit(main())
