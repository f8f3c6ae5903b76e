"""Charts: pure functions from frames to plotly figures, outside Streamlit."""
