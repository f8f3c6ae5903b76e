"""`python -m hprof`: the same as the `hprof` command."""

import sys

from hprof.command_line import main

sys.exit(main())
