"""What a run will hold in memory, told before anything is reserved: its footprint, and what fits into a budget."""
