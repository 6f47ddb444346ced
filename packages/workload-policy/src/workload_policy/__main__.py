"""``python -m workload_policy`` is the command ``workload-policy``."""

from workload_policy.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
