"""Arithmetic that answers whether more GPUs are worth it: no torch, and no I/O but reading a given file."""
