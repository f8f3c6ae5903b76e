"""What if: other links, ubatches and budgets, once hprof can predict them."""

from __future__ import annotations

import streamlit as st

from dashboard import show
from dashboard.choice import current

show.head("What if", current())
show.nothing(
    "There are no sliders here, because this version of hprof cannot predict settings that were not measured.",
    "A guess without a known error would be worse than none.",
)
st.markdown(
    "Until then, ask the simulated device, which replays the same policies on this machine for any model and ubatch, "
    "with a run for each link:"
)
links_gb_s = (12, 25, 50)
st.code(
    "\n".join(
        f"hprof run -m qwen3-30b-a3b --device sim --link-gb-s {link} --arms off,on,full -p 1024 -n 4 -ub 64-1024*2"
        for link in links_gb_s
    ),
    language="bash",
)
