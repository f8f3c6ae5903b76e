"""The pages, one file each, which Streamlit runs from top to bottom."""
