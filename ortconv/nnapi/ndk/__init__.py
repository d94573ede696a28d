"""The NDK's C interface to this runtime: a table of its functions, headers, and a shared library for the PC."""
