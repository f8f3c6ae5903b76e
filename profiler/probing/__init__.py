"""`hprof probe`: measures a machine once, so that predictions for any model are this machine's own."""

from profiler.probing.passes import probe

__all__ = ["probe"]
