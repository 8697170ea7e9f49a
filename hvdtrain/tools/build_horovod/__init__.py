"""Builds Horovod from its source distribution for this environment's torch, Python, MPI and CUDA."""
