"""Forward recovery for data-parallel training with torch: one rank a replica, over DDP."""

__version__ = "0.1.0"
