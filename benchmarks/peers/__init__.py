"""OnceMQ and what people use instead: the same work, on one machine and in one run."""
