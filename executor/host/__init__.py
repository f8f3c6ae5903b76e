"""What is computed on the host: how each weight is kept there and multiplied, for decode and small ubatches."""
