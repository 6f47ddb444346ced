"""Forward recovery for data-parallel training with torch: one rank a replica, over DistributedDataParallel."""

__version__ = "0.1.0"
