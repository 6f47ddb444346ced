"""What a rank does as a process of `ulfmrun`, whatever its program: report, be kept, end well.

Its program never needs these modules: `ulfm_core.launch.bootstrap`, `init()` and `leave()` use
them.
"""
