"""The layers' arithmetic: pure functions of rows and weights, but for the state that a mixer is given."""
