"""Imports what a job with Nanotron takes seconds to import; changes nothing of torch."""

import importlib

from integrations_3d import cpu

cpu.provide_modules()
for name in ("integrations_3d.reference", "integrations_3d.trainer", "integrations_3d.training"):
    importlib.import_module(name)
