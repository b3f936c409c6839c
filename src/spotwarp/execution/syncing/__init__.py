"""A workspace is stored, again and again: when, what of it is whole, how it went, what is still missing."""
