"""Which experts each token of a synthetic model uses: families of popularity, recorded traces, and their spelling."""
