"""`antc`: the composition root. Importing it is cheap; commands import what they need when they run."""

from antfarm.cli.app import main

__all__ = ["main"]
