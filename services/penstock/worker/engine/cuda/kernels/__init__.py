"""Kernels in Triton. The modules beside this folder launch them."""
