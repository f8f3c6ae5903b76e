"""What a capture's manifest says of where it was taken: the machine and the model."""
