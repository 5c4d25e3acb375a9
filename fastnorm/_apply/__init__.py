"""``fastnorm apply``: a function of an array in a ``.npy`` file, chunk by chunk, in memory that does not grow with the file."""
