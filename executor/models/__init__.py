"""From a file, a preset or a Hugging Face config to a `ModelShape` and the tensors that it consists of."""
