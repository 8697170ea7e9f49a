"""The loop, and the parts that it is given."""
