"""Records what any program does on CUDA devices: a small library is loaded into its processes and writes spools.

`native/` is the library's source, `build` compiles it where it is first needed, `cupti_files` finds CUPTI, `control` is
the page through which hprof starts and stops processes, `session` one recording, `launch` runs a command under it.
What the spools hold is read by `profiler.importers.cupti_spool`; docs/recording.md describes it all.
"""
