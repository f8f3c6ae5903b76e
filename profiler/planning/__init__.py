"""What a run is asked to do, and whether it can: checked before anything is written, loaded or reserved."""
