"""The commands of `hprof`, one file each; `hprof.command_line` imports one only when it is called."""
