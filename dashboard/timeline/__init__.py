"""The canvas timeline: its bytes, packed here, and the component in the browser (`js/`) that draws them."""
