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
    "Until then, ask the simulated device: it replays the same policies for any model, link and ubatch on this machine."
)
st.code(
    "hprof run -m qwen3-30b-a3b --device sim --link-gb-s 12,25,50 --arms off,on,full -ub 64-2048*2", language="bash"
)
