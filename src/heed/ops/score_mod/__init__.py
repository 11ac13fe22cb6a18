"""Score functions that users write: traced once to a small program, with its derivative and its bounds."""
