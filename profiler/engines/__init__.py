"""Other engines that hprof drives, so that their arms are measured in turn like its own."""
