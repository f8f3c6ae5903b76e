"""Many machines: a Dask cluster that measures the cells of a sweep, or judges many captures."""
