"""Which weights stay on the device and which in host memory, as llama.cpp's options say it."""
