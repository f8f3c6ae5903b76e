"""`hprof check`: whether what a run issued is ordered on every schedule, not only on the one that was recorded."""
