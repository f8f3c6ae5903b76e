"""Where the bytes of weights lie, on the host and on a device, and how a step sees them."""
