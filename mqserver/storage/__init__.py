"""Layer 3: what is kept, and how. Knows neither Pyro5 nor CosTransactions nor OQL."""
