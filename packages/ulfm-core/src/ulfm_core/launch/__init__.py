"""`ulfmrun`: start a job whose ranks may die, watch it, and say how it ended.

What happens on the side of `ulfmrun` is here; what a rank does as a process of it, in
`ulfm_core.rank`, and what runs in a rank before its program, in `launch.bootstrap`.
"""
