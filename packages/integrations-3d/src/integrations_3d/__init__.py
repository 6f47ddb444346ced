"""Forward recovery for Nanotron: TP x PP x DP inside a replica, ULFM between replicas."""

__version__ = "0.1.0"
